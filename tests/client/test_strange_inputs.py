"""Whatever a caller passes, both clients raise an error of ours or do what was asked: never one of protobuf or gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvboost.client import CacheClient, RuntimeClient
from kvboost.client.runtime_types import ChatMessage
from kvboost.errors import InputError, KVBoostError
from kvboost.types import Chunk, KVLayout, MatchQuery, Namespace, NewChunk, PutRequest, Span
from tests.contracts.chunks import LAYOUT, namespace

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=6) | st.sampled_from(
    ["\ud800", "a\udfffb", ""]
)
numbers = st.integers(-(2**70), 2**70) | st.sampled_from([-1, 0, 1, 2**31, 2**32, 2**63, 2**64])
strange = st.one_of(texts, numbers, st.none(), st.booleans(), st.floats(), st.binary(max_size=3), st.lists(numbers))
numbers_or_strange = st.one_of(st.lists(numbers, max_size=4), st.lists(strange, max_size=3), strange)
texts_or_strange = st.one_of(st.lists(texts, max_size=3), st.lists(strange, max_size=3), strange)
messages = st.lists(st.builds(ChatMessage, texts | strange, texts | strange), max_size=2)


@pytest.fixture(scope="module")
def cache() -> Iterator[CacheClient]:
    client = CacheClient("127.0.0.1:1", timeout_s=1, match_timeout_s=1, fetch_timeout_s=1, put_timeout_s=1)
    yield client
    client.close()


@pytest.fixture(scope="module")
def runtime() -> Iterator[RuntimeClient]:
    client = RuntimeClient("127.0.0.1:1", timeout_s=1)
    yield client
    client.close()


def only_our_errors(call: Callable[[], object]) -> None:
    with suppress(KVBoostError):
        call()


few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def made(kind: Callable[..., Any], *values: object) -> Any:
    """Return what ``kind`` makes of ``values``, or None if it refuses them itself."""
    try:
        return kind(*values)
    except (InputError, TypeError, ValueError):
        return None


@few
@given(texts, texts, texts | strange, st.tuples(*[numbers] * 4))
def test_namespaces(cache: CacheClient, model: str, rope: str, tenant: Any, sizes: tuple[int, ...]) -> None:
    layout = made(KVLayout, *sizes, "float16")
    named = made(Namespace, model, "t", rope, layout or LAYOUT, "", tenant)
    only_our_errors(lambda: cache.open(named))


@few
@given(texts | strange, numbers_or_strange, texts | strange, numbers, numbers)
def test_look_ups_and_puts(cache: CacheClient, key: Any, ids: Any, text: Any, nominees: int, shared: int) -> None:
    count = len(ids) if isinstance(ids, list) else 1
    chunks = (Chunk(Span(0, count), text),) if count else ()
    query = made(MatchQuery, key, ids, chunks, 0.5, nominees, shared)
    if query is not None:
        only_our_errors(lambda: cache.match(query))
    chunk = NewChunk(Span(0, max(1, count)), text, True, bytes(16))
    only_our_errors(lambda: cache.put(PutRequest(key, ids, (chunk,))))
    no_buffer: Any = text
    only_our_errors(lambda: cache.put(PutRequest(namespace().key, (1,), (NewChunk(Span(0, 1), "", True, no_buffer),))))


@few
@given(texts | strange, numbers_or_strange, numbers | strange)
def test_ids_of_chunks(cache: CacheClient, key: Any, ids: Any, parts: Any) -> None:
    only_our_errors(lambda: list(cache.fetch(key, ids)))
    only_our_errors(lambda: list(cache.fetch_parts(key, ids, parts)))
    only_our_errors(lambda: cache.evict(key, ids))
    only_our_errors(lambda: cache.drop(key))


@few
@given(texts | messages | numbers_or_strange, numbers | strange, numbers | strange, st.floats() | strange)
def test_prompts(runtime: RuntimeClient, prompt: Any, most: Any, logprobs: Any, timeout_s: Any) -> None:
    only_our_errors(lambda: runtime.answer(prompt, max_new_tokens=most, logprobs=logprobs, timeout_s=timeout_s))


@few
@given(texts_or_strange, texts | strange, texts | messages | strange, st.floats() | strange)
def test_documents(runtime: RuntimeClient, documents: Any, prefix: Any, before: Any, timeout_s: Any) -> None:
    only_our_errors(lambda: runtime.warm(documents, prefix=prefix, timeout_s=timeout_s))
    only_our_errors(lambda: runtime.order(documents, before=before))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.open(namespace(tenant="\ud800")), "namespace.tenant holds half of a surrogate pair"),
        (lambda c: c.evict("k", [-1]), r"chunk_ids must lie in \[0, 2\*\*64\)"),
        (lambda c: list(c.fetch("k", [2**64])), "chunk_ids must lie in"),
        (lambda c: list(c.fetch("k", ["a"])), "chunk_ids must be whole numbers, not str"),
        (lambda c: list(c.fetch_parts("k", [1], 2**32)), "parts must lie in"),
        (lambda c: c.drop(None), "namespace must be a text, not NoneType"),
        (lambda c: c.match(MatchQuery("k", (1,), (Chunk(Span(0, 1), "\udfff"),))), r"chunks\[0\]\.text holds half"),
        (lambda c: c.match(MatchQuery("k", (2**32,), (Chunk(Span(0, 1), ""),))), "token_ids must lie in"),
        (lambda c: c.match(MatchQuery("k", (1,), (Chunk(Span(0, 1), ""),), 0.5, 2**32)), "max_nominees must lie in"),
        (lambda c: c.put(PutRequest("k", (1,), (NewChunk(Span(0, 1), "", True, "text"),))), "payload must be a buffer"),
    ],
)
def test_the_field_is_named(cache: CacheClient, call: Callable[[CacheClient], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call(cache)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_deadline_is_a_time(runtime: RuntimeClient, timeout_s: Any) -> None:
    for call in (
        lambda: CacheClient("127.0.0.1:1", put_timeout_s=timeout_s),
        lambda: RuntimeClient("127.0.0.1:1", timeout_s=timeout_s),
        lambda: runtime.answer("a", timeout_s=timeout_s),
        lambda: runtime.warm(["a"], timeout_s=timeout_s),
    ):
        with pytest.raises(InputError, match="timeout_s"):
            call()
