"""Caches with planted faults, around a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kvboost.types import ChunkKV, Match, MatchQuery, MatchResult, PutReceipt, PutRequest


class FaultyCache:
    """Passes every call on to ``inner``, changed by what is planted.

    ``raises`` maps a method's name to the error it raises; ``on_match`` and ``on_fetch`` change single results
    (None leaves a result out). ``calls`` records the methods called, ``puts`` what was offered.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.raises: dict[str, Exception] = {}
        self.on_match: Callable[[Match], Match | None] = lambda match: match
        self.on_fetch: Callable[[ChunkKV], ChunkKV | None] = lambda chunk: chunk
        self.fail_after: int | None = None
        self.calls: list[str] = []
        self.puts: list[PutRequest] = []

    def match(self, query: MatchQuery) -> MatchResult:
        self._enter("match")
        found = self.inner.match(query)
        return replace(found, matches=tuple(m for m in map(self.on_match, found.matches) if m is not None))

    def fetch(self, namespace: str, chunk_ids: Sequence[int]) -> Iterator[ChunkKV]:
        self._enter("fetch")
        return self._chunks(self.inner.fetch(namespace, chunk_ids))

    def put(self, request: PutRequest) -> PutReceipt:
        self._enter("put")
        self.puts.append(request)
        receipt: PutReceipt = self.inner.put(request)
        return receipt

    def _chunks(self, chunks: Iterable[ChunkKV]) -> Iterator[ChunkKV]:
        for number, chunk in enumerate(chunks):
            if self.fail_after == number:
                raise self.raises["stream"]
            changed = self.on_fetch(chunk)
            if changed is not None:
                yield changed

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        if name in self.raises:
            raise self.raises[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
