"""The staleness eval over a tiny model."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evals import stale
from evals._bench import Bench
from evals._documents import Document
from evals._prompts import prompt
from evals._stale_items import Item, make_item
from evals._stale_policies import cases
from evals._stale_probe import FIRST_QUESTION, Prober, Reply
from evals._stale_rows import figures
from evals._stale_score import Verdict
from evals._stale_templates import KINDS, LANGUAGES, TEMPLATES

_TEXT = [
    "The river runs past the old mill and the bridge. Children play beside the water in summer. "
    "In winter the mountain behind the village is white. Nobody takes the path to the top then. "
    "The letters that come from far away take a long time. People read them together in the evening."
]


@pytest.fixture(scope="module")
def lenient(bench: Bench) -> Bench:
    """Nominates more freely: the embedder of the tests knows nothing but trigrams."""
    return replace(bench, config=replace(bench.config, policy=replace(bench.policy, threshold=0.5)))


def _item(kind: str, number: int = 0) -> Item:
    template = [t for t in TEMPLATES["en"] if t.kind == kind][number]
    return make_item(template, "en", _TEXT, len, 100, random.Random(3))


def test_every_policy_is_asked_about_every_item(lenient: Bench, tmp_path: Path) -> None:
    argv = ["--quick", "--items", "5", "--document-tokens", "300", "--answer-tokens", "4"]
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    assert stale.main([*argv, *files], lenient) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    wanted = {"policy", "language", "kind", "n", "stale_share", "new_share", "forced_stale_share"}
    assert all(wanted <= set(row) for row in result["rows"])
    policies = ["full", "default", "default_no_fact_rule", "rotate_only_fact_rule", "rotate_only"]
    assert list(result["summary"]) == policies
    if not result["stopped_early"]:
        listed = [(row["policy"], row["language"], row["kind"]) for row in result["rows"]]
        assert listed == [(p, language, kind) for p in policies for language in LANGUAGES for kind in KINDS]
    summary = result["summary"]
    assert summary["full"]["reuse_share"] == 0.0
    assert summary["default"]["nominated_share"] > 0.5
    assert summary["default"]["followed_share"] > 0.5
    assert summary["rotate_only"]["reuse_share"] > summary["rotate_only_fact_rule"]["reuse_share"]


@pytest.mark.parametrize("begin", [True, False])
def test_full_prefill_is_that_of_the_plain_model_and_the_prefix_tier_equals_it(lenient: Bench, begin: bool) -> None:
    item = _item("number")
    compared = cases(lenient.policy, quick=False)
    with lenient.session() as session:
        replies = {r.case: r for r in Prober(session, lenient.tokenizer, compared, 6, begin).ask(item)}
    ids = prompt(lenient.tokenizer, [Document("", item.new_document)], item.question)
    beginning = lenient.tokenizer(item.prefix, add_special_tokens=False)["input_ids"] if begin else []
    begun = torch.tensor([[*ids, *beginning]])
    answer = lenient.model.generate(begun, max_new_tokens=6, do_sample=False)[0, begun.shape[1] :]
    assert replies["full"].answer == lenient.tokenizer.decode(answer, skip_special_tokens=True)
    old, new = (
        lenient.tokenizer(f"{item.prefix} {forms[0]}.", add_special_tokens=False)["input_ids"]
        for forms in (item.old_forms, item.new_forms)
    )
    parting = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    with torch.no_grad():
        logits = lenient.model(torch.tensor([[*ids, *new[:parting]]])).logits[0, -1]
    expected = float(logits[new[parting]] - logits[old[parting]])
    assert replies["full"].log_odds == pytest.approx(expected, abs=1e-3)
    assert replies["prefix"].log_odds == pytest.approx(expected, abs=1e-3)
    assert replies["prefix"].reuse_share > 0.1
    assert replies["rotate_only"].log_odds != pytest.approx(expected, abs=1e-3)


def test_only_the_policies_without_the_rule_reuse_words_of_the_changed_sentence(lenient: Bench) -> None:
    item = _item("negation", 1)
    old, new = (
        prompt(lenient.tokenizer, [Document("", text)], question)
        for text, question in (
            (item.old_document, FIRST_QUESTION["en"]),
            (item.new_document, item.question),
        )
    )
    with lenient.session() as session:
        session.store(old)
        own = session.engine.preparer
        reused = {}
        for case in cases(lenient.policy, quick=True):
            spans = [piece.target for piece in case.preparer(own).prepare(new, 0, case.policy).plan.reuse]
            text = [lenient.tokenizer.decode(new[s.start : s.end]) for s in spans]
            reused[case.name] = " ".join(text)
    assert reused["full"] == ""
    for name in ("default", "rotate_only_fact_rule"):
        assert "on Sundays" not in reused[name]
        assert "Children play" in reused[name]
    for name in ("default_no_fact_rule", "rotate_only"):
        assert "on Sundays" in reused[name]


def test_shares_are_counted_over_items_and_against_full_prefill() -> None:
    item = _item("number")

    def reply(case: str, old: bool, new: bool, odds: float) -> Reply:
        return Reply(case, item, "", Verdict(old, new), odds, True, False, 0.5)

    asked = [
        [reply("full", False, True, 1.0), reply("default", True, True, -1.0)],
        [reply("full", True, False, 1.0), reply("default", True, False, 3.0)],
        [reply("full", False, False, 1.0), reply("default", False, False, 1.0)],
        [reply("full", False, True, 1.0), reply("default", False, True, 1.0)],
    ]
    row = figures(asked, "default")
    assert (row["n"], row["stale_share"], row["new_share"], row["both_share"]) == (4, 0.5, 0.5, 0.25)
    assert (row["neither_share"], row["forced_stale_share"], row["log_odds"]) == (0.25, 0.25, 1.0)
    assert row["fell_stale"] == 1


def test_without_an_embedder_the_eval_says_what_is_missing(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert stale.main(["--quick"], replace(bench, embedder=None)) == 2
    assert "embedder" in capsys.readouterr().err
