"""Boosted models over the same chunks, in this process and behind a cache server."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from evals._bench import EMBEDDING_TIMEOUT_S, SESSION_BYTES, Bench, Session
from evals._clocks import TokenClock, as_batch, twin
from evals._frozen import FrozenCache
from kvboost.api import boost, engine_of, unboost
from kvboost.client import CacheClient
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.protocols import ChunkCache
from kvboost.reuse import ReuseReport
from kvboost.runtime.serve.engine import Engine
from kvboost.types import PutReceipt, PutRequest
from services.processes import server

TRANSPORTS = ("in_process", "unix", "tcp")
_CLIENT_TIMEOUT_S = 120.0
_SETTLE_POLL_S = 0.3
_QUIET_POLLS = 4


@dataclass(frozen=True, slots=True)
class Timed:
    """One request through a boosted model.

    Attributes
    ----------
    first_token_s, first_decode_s
        From the call to the first token as a streamer hears it, and from there to the second; None if the answer
        ended before.
    """

    report: ReuseReport
    first_token_s: float
    first_decode_s: float | None


class Mirrored(FrozenCache):
    """A cache whose puts, where they are kept, go to other caches as well."""

    def __init__(self, cache: ChunkCache, others: Sequence[ChunkCache]) -> None:
        super().__init__(cache)
        self._others = others

    def put(self, request: PutRequest) -> PutReceipt:
        """Keep it here and there, or drop it."""
        if self._keeps:
            for other in self._others:
                other.put(request)
        return super().put(request)


class Served:
    """One model on several transports; the chunks behind all of them are the same."""

    def __init__(self, engines: dict[str, Engine], cache: Mirrored, local: LocalCache, remote: CacheClient | None):
        self.engines = engines
        self._cache = cache
        self._local = local
        self._remote = remote
        self._writer = engines["in_process"]

    def store(self, token_ids: Sequence[int]) -> None:
        """Serve an ordinary request and keep its chunks, embedded, in all caches."""
        with self._cache.thawed():
            self._ask(self._writer, token_ids, None)
            self._writer.writer.flush(EMBEDDING_TIMEOUT_S)
        self._local.flush(EMBEDDING_TIMEOUT_S)
        if self._remote is not None:
            _settle(self._remote)

    def forget(self) -> None:
        """Empty all caches."""
        namespace = self._writer.namespace
        for cache in (self._local, self._remote):
            if cache is not None:
                cache.drop(namespace.key)
                cache.open(namespace)

    def ask(self, transport: str, token_ids: Sequence[int], policy: ReusePolicy) -> Timed:
        """Answer two tokens with reuse; nothing new is cached."""
        return self._ask(self.engines[transport], token_ids, policy)

    def session(self) -> Session:
        """Return the model in this process as the other evals measure it."""
        return Session(self._writer, self._cache, lambda: self._local.flush(EMBEDDING_TIMEOUT_S))

    @staticmethod
    def _ask(engine: Engine, token_ids: Sequence[int], policy: ReusePolicy | None) -> Timed:
        clock = TokenClock()
        ids = as_batch(token_ids, engine.model.device)
        mask = torch.ones_like(ids)
        start = time.perf_counter()
        _, report = engine.generate(
            ids, attention_mask=mask, policy=policy, max_new_tokens=2, do_sample=False, streamer=clock
        )
        engine.writer.flush(EMBEDDING_TIMEOUT_S)
        times = clock.times_s
        return Timed(report, times[0] - start, times[1] - times[0] if len(times) > 1 else None)


@contextmanager
def cache_server(embedder: str) -> Iterator[tuple[str, str]]:
    """Run ``kvboost serve-cache`` until the block ends, and give its unix and TCP addresses."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvboost-eval-")))
        command = ["serve-cache", "--unix", f"{folder}/cache.sock", "--address", "127.0.0.1:0"]
        sizes = ["--max-bytes", str(SESSION_BYTES), "--embedder", embedder]
        child = stack.enter_context(server("Starting the cache server", [*command, *sizes], folder))
        said = child.wait_until_listening().split()
        tcp = next(word for word in said if word.startswith("127.0.0.1:"))
        yield f"unix:{folder}/cache.sock", tcp


@contextmanager
def served(
    bench: Bench, model: PreTrainedModel, transports: Sequence[str], addresses: tuple[str, str]
) -> Iterator[Served]:
    """Boost a module over ``model``'s weights for each transport; ``model`` stays as it is."""
    with ExitStack() as stack:
        local = stack.enter_context(closing(LocalCache(SESSION_BYTES, bench.embedder, bench.config.cache.max_variants)))
        remote: dict[str, CacheClient] = {}
        for transport, address in zip(TRANSPORTS[1:], addresses, strict=True):
            if transport in transports:
                client = CacheClient(
                    address,
                    match_timeout_s=_CLIENT_TIMEOUT_S,
                    fetch_timeout_s=_CLIENT_TIMEOUT_S,
                    shared_memory=transport == "unix",  # TCP stands for another host
                )
                remote[transport] = stack.enter_context(closing(client))
        first = next(iter(remote.values()), None)
        cache = Mirrored(local, [first] if first is not None else [])
        caches: dict[str, ChunkCache] = {"in_process": cache, **{name: FrozenCache(c) for name, c in remote.items()}}
        engines = {}
        # The one in this process is always there: it takes what is stored.
        for name, each in caches.items():
            boosted = twin(model)
            boost(boosted, bench.tokenizer, each, bench.policy, config=bench.config)
            stack.callback(unboost, boosted)
            engines[name] = engine_of(boosted)
        yield Served(engines, cache, local, first)


def _settle(cache: CacheClient) -> None:
    """Wait until the server embeds nothing more: it would take the processor from the next request's clock."""
    end = time.monotonic() + EMBEDDING_TIMEOUT_S
    before, quiet = -1, 0
    while quiet < _QUIET_POLLS and time.monotonic() < end:
        vectors = sum(namespace.vectors for namespace in cache.stats().namespaces)
        quiet = quiet + 1 if vectors == before else 0
        before = vectors
        time.sleep(_SETTLE_POLL_S)
