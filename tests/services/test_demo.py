"""The demo: its documents, its parts, and all of it over a tiny model in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from kvboost.client.runtime_types import Answer, Score
from kvboost.errors import DataLossError, InputError, KVBoostError
from kvboost.reuse import ReuseReport, TierSpan
from kvboost.services.demo.documents import NEW_FEE, OLD_FEE, documents, opening, short_documents
from kvboost.services.demo.outcome import Outcome
from kvboost.services.demo.scenario import chat, cold, edited, reordered
from kvboost.services.demo.show import outcome_lines, summary, sustained_lines
from kvboost.services.demo.sustained import Sustained, sustained
from kvboost.services.processes import ended_like_ctrl_c, server
from kvboost.types import Span, Tier
from tests.boosting import document
from tests.tiny_models import tiny_model, tiny_tokenizer

NO_EMBEDDER = '[embedder]\nmodel = "none"\n'


def outcome_of(text: str = "It costs 280 euros.", name: str = "edited") -> Outcome:
    request = edited() if name == "edited" else cold()
    texts = ("Some context. ", "More of it. ", request.question, "<|end|>")
    tiers = {**dict.fromkeys(Tier, 0), Tier.EXACT: 1, Tier.COMPUTED: 3}
    spans = (
        TierSpan(Span(0, 1), Tier.EXACT, 1.0, False),
        TierSpan(Span(1, 2), Tier.COMPUTED, 1.0, True),
        TierSpan(Span(2, 4), Tier.COMPUTED, 1.0, False),
    )
    report = ReuseReport(4, tiers, 1, 0.5, 0.25, {"match": 0.01}, (), None, 1.0, spans)
    score = Score(0.01, 0.02, 0.5, None, 4, 1.0, text)
    return Outcome.of(request, Answer(text, (5, 6), "stop", report, score, texts))


def test_documents_are_the_same_each_time_and_differ_in_one_number() -> None:
    assert documents() == documents()
    old, new = documents(), documents(NEW_FEE)
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    assert len(old) == len(set(old)) == 8
    assert [a.replace(OLD_FEE, NEW_FEE) for a, _ in changed] == [b for _, b in changed]
    assert sum(text.count(OLD_FEE) for text in old) == 1
    assert not any(NEW_FEE in text for text in old)


def test_short_documents_are_fourteen() -> None:
    texts = short_documents()
    assert len(set(texts)) == 14
    assert all(200 < len(text) <= 700 for text in texts)


def test_an_opening_ends_with_a_whole_paragraph_that_says_something() -> None:
    text = "Title\n=====\n\nFirst one.\n\nNext\n****\n\nIt says:\n\nLast one."
    assert opening(text, 25) == "Title\n=====\n\nFirst one."
    assert opening(text, 35) == "Title\n=====\n\nFirst one."
    assert opening(text, 46) == "Title\n=====\n\nFirst one."
    assert opening(text, 60) == text
    assert opening("one line\nand another\nand more", 25) == "one line\nand another"


@pytest.mark.parametrize("seed", range(5))
def test_reordering_moves_every_document(seed: int) -> None:
    first, moved = cold().messages[1].content, reordered(seed).messages[1].content
    assert sorted(first.split("\n\n")[:-1]) == sorted(moved.split("\n\n")[:-1])
    in_order, in_new_order = (sorted(documents(), key=body.index) for body in (first, moved))
    assert in_order == documents()
    assert not any(a == b for a, b in zip(in_order, in_new_order, strict=True))
    assert reordered(seed) == reordered(seed)


def test_the_chat_continues_the_first_request() -> None:
    turn = chat(cold(), "On Tuesdays.")
    assert turn.messages[:2] == cold().messages
    assert [message.role for message in turn.messages] == ["system", "user", "assistant", "user"]
    assert turn.messages[2].content == "On Tuesdays."


def test_context_is_everything_before_the_question() -> None:
    request = cold()
    texts = ("<s>", request.question[:4], " twice: ", request.question[:9], request.question[9:], "\n")
    assert request.context_tokens(texts) == 3
    # A token that carries the question's first letters is no context.
    assert request.context_tokens(("a", "b" + request.question, "c")) == 1


def test_outcome_has_the_public_names() -> None:
    figures = outcome_of().figures()
    assert json.loads(json.dumps(figures)) == figures
    assert figures["context_tokens"] == 2
    assert figures["reused_tokens"] == 1
    assert figures["tokens_by_tier"] == {
        "prefix": 0,
        "continued": 0,
        "exact": 1,
        "similar": 0,
        "substitute": 0,
        "computed": 3,
    }
    assert (figures["expected"], figures["old"]) == (NEW_FEE, OLD_FEE)
    assert (figures["ttft_s"], figures["baseline_ttft_s"], figures["ttft_ratio"]) == (0.25, 1.0, 0.25)


def test_an_answer_without_score_is_refused() -> None:
    whole = outcome_of()
    bare = Answer(whole.answer.text, (), "stop", whole.answer.report, None, whole.answer.token_texts)
    with pytest.raises(DataLossError, match="score"):
        Outcome.of(whole.request, bare)


def test_what_is_printed_fits_and_is_plain() -> None:
    one = outcome_of("280 \x1b[31m" + "euros " * 40)
    shown = "\n".join([outcome_lines(one), summary([one, one]), sustained_lines(SUSTAINED)])
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown
    assert "280 is in the answer" in shown


def test_a_stale_answer_is_told() -> None:
    assert f"NOT in the answer; {OLD_FEE}, the old one, is" in outcome_lines(outcome_of(f"It is {OLD_FEE}."))


SUSTAINED = Sustained(100, 14, 160 << 20, 120 << 20, 7, 20, 0.9, 0.88)


def test_sustained_reordering_over_a_tiny_model() -> None:
    model = tiny_model("llama", max_position_embeddings=2048)
    result = sustained(model, tiny_tokenizer(), [document(seed, 6) for seed in range(14)], requests=60, seed=3)
    assert (result.requests, result.documents, result.window) == (60, 14, 20)
    assert result.first_share > 0.6
    assert result.ratio >= 0.95
    assert 0 < result.stored_bytes_max <= result.budget_bytes
    assert not hasattr(model, "kvboost_engine")


def test_sustained_refuses_too_few_requests() -> None:
    with pytest.raises(InputError, match="ask for more"):
        sustained(tiny_model("llama"), tiny_tokenizer(), ["a"] * 14, requests=3)


def test_a_server_ends_with_its_block(tmp_path: Path) -> None:
    (tmp_path / "kvboost.toml").write_text(NO_EMBEDDER)
    socket = tmp_path / "cache.sock"
    pids = []

    def interrupted() -> None:
        with (
            ended_like_ctrl_c(),
            server("Starting", ["serve-cache", "--no-tcp", "--unix", str(socket)], tmp_path) as child,
        ):
            pids.append(child.pid)
            assert socket.exists()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert not socket.exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    command = ["serve-cache", "--workers", "0", "--embedder", "none"]
    with (
        pytest.raises(KVBoostError, match=r"serve-cache ended before it listened: .*workers"),
        server("Starting", command, tmp_path),
    ):
        pass


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the whole demo over a tiny model; return its folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    tiny_model("llama", max_position_embeddings=16_384).save_pretrained(folder / "model")
    tiny_tokenizer(model_max_length=16_384).save_pretrained(folder / "model")
    (folder / "kvboost.toml").write_text(NO_EMBEDDER)
    command = ["demo", "--quick", "--model", "model", "--json", "new/figures.json", "--out", "maps"]
    done = subprocess.run(
        [sys.executable, "-m", "kvboost.services.cli", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_demo_writes_its_figures(tiny_run: tuple[Path, str]) -> None:
    figures = json.loads((tiny_run[0] / "new" / "figures.json").read_text())
    requests = {one["name"]: one for one in figures["requests"]}
    assert list(requests) == ["cold", "reordered", "edited", "chat"]
    for one in requests.values():
        assert sum(one["tokens_by_tier"].values()) == one["prompt_tokens"] > one["context_tokens"]
        assert one["reused_tokens"] == one["prompt_tokens"] - one["tokens_by_tier"]["computed"]
        assert one["ttft_s"] > 0
        assert one["baseline_ttft_s"] > 0
        assert one["fallback"] is None
    assert requests["cold"]["reused_tokens"] == 0
    assert requests["reordered"]["reused_tokens"] > 0.85 * requests["reordered"]["context_tokens"]
    assert requests["chat"]["reused_tokens"] == requests["chat"]["tokens_by_tier"]["prefix"]
    assert requests["chat"]["reused_tokens"] >= 0.95 * requests["chat"]["context_tokens"]
    assert requests["chat"]["answer"] == requests["chat"]["baseline_answer"]
    assert (requests["edited"]["expected"], requests["edited"]["old"]) == (NEW_FEE, OLD_FEE)
    names = {"requests", "documents", "budget_bytes", "stored_bytes_max", "reuse_share_first_20_warm"}
    assert names | {"reuse_share_last_20", "ratio"} <= set(figures["sustained"])
    assert {"machine", "commit", "model", "versions", "seed"} <= set(figures)


def test_demo_draws_maps_and_prints_where_they_are(tiny_run: tuple[Path, str]) -> None:
    folder, printed = tiny_run
    assert max(map(len, printed.splitlines()[1:])) <= 100  # the first line is the model's directory
    for name in ("cold", "reordered", "edited", "chat"):
        assert f"maps/{name}.png" in printed
        with Image.open(folder / "maps" / f"{name}.png") as picture:
            assert picture.width == 1280
        assert re.search(r"<title>" + name, (folder / "maps" / f"{name}.html").read_text())


@pytest.mark.real_model
def test_documents_have_the_demo_models_size() -> None:
    from transformers import AutoTokenizer

    from kvboost.runtime.model.demo_model import demo_model_dir

    tokenizer = AutoTokenizer.from_pretrained(demo_model_dir())
    sizes = [len(tokenizer(f"{text}\n\n")["input_ids"]) for text in documents()]
    assert all(200 <= size <= 520 for size in sizes)
    assert sum(sizes) >= 2_000
    assert all(80 <= len(tokenizer(text)["input_ids"]) <= 170 for text in short_documents())
