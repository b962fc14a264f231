"""What a runtime is asked for is checked before it is sent: typed errors, no raw ones of protobuf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvboost.client import RuntimeClient
from kvboost.client.bounds import MAX_REQUEST_BYTES
from kvboost.client.runtime_types import ChatMessage
from kvboost.errors import InputError, PromptTooLongError
from kvboost.sampling import Sampling


@pytest.fixture
def client() -> Iterator[RuntimeClient]:
    """A client of nobody: what it refuses, it refuses before it connects."""
    client = RuntimeClient("127.0.0.1:1")
    yield client
    client.close()


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("\ud800", {}, "prompt holds half of a surrogate pair"),
        ([ChatMessage("user", "\udfff")], {}, r"messages\[0\]\.content holds half"),
        ([ChatMessage("\udfff", "a")], {}, r"messages\[0\]\.role holds half"),
        ([ChatMessage("user", None)], {}, r"messages\[0\]\.content must be a text, not NoneType"),
        ([True, False], {}, "prompt must be a text"),
        ([2**32], {}, "token_ids must lie in"),
        ("a", {"max_new_tokens": -1}, r"max_new_tokens must lie in \[0, 2\*\*32\)"),
        ("a", {"max_new_tokens": 2**32}, "max_new_tokens must lie in"),
        ("a", {"max_new_tokens": True}, "max_new_tokens must be a whole number, not bool"),
        ("a", {"max_new_tokens": 1.5}, "max_new_tokens must be a whole number, not float"),
        ("a", {"logprobs": -1}, "logprobs must lie in"),
    ],
)
def test_what_a_message_cannot_hold_is_refused_by_name(
    client: RuntimeClient, prompt: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        next(client.generate(prompt, **options))


def test_what_is_longer_than_a_message_is_refused(client: RuntimeClient) -> None:
    with pytest.raises(PromptTooLongError, match=r"the prompt takes 4,194,\d+ bytes, a request holds 4,194,304"):
        client.answer("a" * MAX_REQUEST_BYTES)
    with pytest.raises(PromptTooLongError, match=r"documents\[1\] with its prefix takes"):
        client.warm(["a", "b" * MAX_REQUEST_BYTES])
    with pytest.raises(PromptTooLongError, match="documents and what stands before them"):
        client.order(["a" * MAX_REQUEST_BYTES])


def test_texts_of_other_calls_are_checked_too(client: RuntimeClient) -> None:
    with pytest.raises(InputError, match=r"documents\[1\] holds half"):
        client.warm(["a", "\ud800"])
    with pytest.raises(InputError, match="prefix holds half"):
        client.warm(["a"], prefix="\ud800")
    with pytest.raises(InputError, match=r"documents\[0\] holds half"):
        client.order(["\ud800"])
    with pytest.raises(InputError, match=r"messages\[0\]\.content holds half"):
        client.order(["a"], before=[ChatMessage("user", "\ud800")])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": True}, "temperature must be a number, not bool"),
        ({"temperature": "warm"}, "temperature must be a number, not str"),
        ({"top_k": 1.5}, "top_k must be a whole number, not float"),
        ({"top_k": 2**32}, "top_k 4294967296 must lie in"),
        ({"seed": 10**5000}, "seed of 16610 bits must lie in"),
        ({"stop": ["a", "\ud800"]}, r"stop\[1\] holds half"),
        ({"stop": [5]}, r"stop\[0\] must be a text, not int"),
        ({"stop": ["a"] * 65}, "stop holds 65 texts; give at most 64"),
        ({"stop": ["a" * 1025]}, r"stop\[0\] has 1025 characters; give at most 1024"),
    ],
)
def test_sampling_takes_what_a_message_holds(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Sampling(**values)
