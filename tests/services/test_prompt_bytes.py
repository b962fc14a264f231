"""A prompt that can't fit is refused by its bytes, where that is certain; large ones are tokenised a few at a time."""

from __future__ import annotations

import json
import threading
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kvboost.client.runtime_types import ChatMessage
from kvboost.errors import PromptTooLongError
from kvboost.services.runtime_server.prompt_bytes import NFC_SHRINKS, byte_bound
from kvboost.services.runtime_server.tokenising import LARGE_AT_ONCE, LARGE_CHARS, Tokenising
from tests.boosting import tokenizer
from tests.runtime_service import Running, runtime_service
from tests.tiny_models import MAX_POSITION, tiny_tokenizer

ENDLESS = "The light of the day came in. " * 130_000  # 3.9 MB: just within what a request holds


def composing() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def cutting_digits() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel()]
    )
    return tokenizer


def without_some_bytes() -> PreTrainedTokenizerFast:
    """As of the demo model, whose vocabulary lacks bytes that its training never saw: they vanish from a text."""
    state = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    model = state["model"]
    lacking = {char for char in pre_tokenizers.ByteLevel.alphabet() if char > "\u00ef" and char not in "ĠĊ"}
    model["vocab"] = {token: i for token, i in model["vocab"].items() if not lacking & set(token)}
    model["merges"] = [pair for pair in model["merges"] if not lacking & set("".join(pair))]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))


@pytest.mark.parametrize("make", [tiny_tokenizer, composing, cutting_digits, without_some_bytes])
def test_a_text_has_at_least_the_tokens_of_its_bound(make: Any) -> None:
    tokenizer = make()
    bound = byte_bound(tokenizer)
    assert bound is not None
    assert bound.least_tokens(ENDLESS) > MAX_POSITION
    characters = st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n\x00\x04\u1fbe\u0308\u0301é1𑀀")
    )

    @settings(max_examples=150, deadline=None)
    @given(st.text(characters, max_size=40))
    def holds(text: str) -> None:
        for repeated in (text, text * 20, "light of day" * 3 + text):
            ids = tokenizer(repeated, add_special_tokens=False)["input_ids"]
            assert bound.least_tokens(repeated) <= len(ids)

    holds()


def test_composed_characters_keep_their_share_of_the_bytes() -> None:
    def size(text: str) -> int:
        return len(text.encode())

    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    longest: dict[str, int] = {}
    for char in every:
        plain = unicodedata.normalize("NFD", char)
        longest[plain] = max(longest.get(plain, 0), size(char))
    shares = [
        sum(longest.get(part, size(part)) for part in unicodedata.normalize("NFD", char)) / size(char)
        for char in every
        if unicodedata.is_normalized("NFC", char)
    ]
    assert 3 < max(shares) < NFC_SHRINKS


def changed(**parts: Any) -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    for name, part in parts.items():
        setattr(tokenizer.backend_tokenizer, name, part)
    return tokenizer


def greedy_of_space() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.add_tokens([AddedToken("<here>", lstrip=True)])
    return tokenizer


def words() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    "dropping",
    [
        greedy_of_space(),
        words(),
        changed(normalizer=normalizers.Strip()),
        changed(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Replace("  ", " ")])),
        changed(pre_tokenizer=pre_tokenizers.Whitespace()),
        changed(
            pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])
        ),
    ],
)
def test_a_tokenizer_that_may_drop_text_has_no_bound(dropping: PreTrainedTokenizerFast) -> None:
    assert byte_bound(dropping) is None


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with runtime_service() as started:
        yield started


def test_what_cannot_fit_is_refused_before_it_is_tokenised(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(*_: object, **__: object) -> None:
        raise AssertionError("tokenised")

    monkeypatch.setattr(running.served.tokenising, "_tokenizer", unasked)
    told = rf"has at least \d+ tokens, the model's context holds {MAX_POSITION}, the answer included; "
    with pytest.raises(PromptTooLongError, match=f"prompt {told}shorten the prompt"):
        running.client.answer(ENDLESS)
    with pytest.raises(PromptTooLongError, match=f"chat {told}shorten the prompt"):
        running.client.answer([ChatMessage("user", ENDLESS)])
    with pytest.raises(PromptTooLongError, match=rf"documents\[0\] {told}split it"):
        running.client.warm([ENDLESS[:2_000_000]], prefix="of")


class Counting:
    """A tokenizer that notes how many texts it has at once, and holds the large ones until it is told."""

    def __init__(self) -> None:
        self.backend_tokenizer = tokenizer().backend_tokenizer
        self.most = self.now = 0
        self.full = threading.Semaphore(0)
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        if len(text) <= LARGE_CHARS:
            return {"input_ids": [1]}
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.full.release()
        assert self.go_on.wait(60)
        with self._lock:
            self.now -= 1
        return {"input_ids": [2]}


def test_large_texts_wait_for_one_another_and_small_ones_do_not() -> None:
    counting = Counting()
    tokenising = Tokenising(counting, 0)  # type: ignore[arg-type]
    with ThreadPoolExecutor(8) as pool:
        large = [pool.submit(tokenising.prompt_ids, ENDLESS, "prompt", "") for _ in range(8)]
        for _ in range(LARGE_AT_ONCE):
            assert counting.full.acquire(timeout=60)
        assert tokenising.prompt_ids("light", "prompt", "") == [1]
        counting.go_on.set()
        assert [done.result(60) for done in large] == [[2]] * 8
    assert counting.most == LARGE_AT_ONCE
