"""Processor time by stage and memory of one request, and the tiny model that long prompts are tried on."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from evals._bench import Session
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.runtime.kv.harvest import new_chunks
from kvboost.runtime.prepare.prepared import Stages

_CUT = "kvboost.runtime.serve.storing.new_chunks"
_SAMPLE_S = 0.002
_STATM = Path("/proc/self/statm")


def tiny_model(tokenizer: PreTrainedTokenizerBase, max_tokens: int, seed: int) -> PreTrainedModel:
    """Return a random Llama of 2 layers and 2 heads over one of K/V, 8 numbers wide, that reads ``max_tokens``."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_tokens,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


@dataclass
class CpuStages:
    """Seconds of processor time by stage, of the thread that each stage runs on."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside to ``name``."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - start

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have the stages of requests, cutting out of new chunks and putting them timed by this clock instead."""

        def stage(own: Stages, name: str) -> Any:
            return self.measure(name)

        with ExitStack() as stack:
            stack.enter_context(patch.object(Stages, "measure", stage))
            stack.enter_context(patch(_CUT, self._timed("harvest", new_chunks)))
            stack.enter_context(patch.object(LocalCache, "put", self._timed("put", LocalCache.put)))
            yield

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.measure(name):
                return function(*args, **kwargs)

        return timed


class ResidentPeak:
    """The most memory that this process holds meanwhile, looked at every 2 ms; ``grown`` stays None off Linux."""

    def __init__(self) -> None:
        self.grown: int | None = None
        self._done = threading.Event()

    @property
    def seen(self) -> int:
        """Bytes that the process has grown by at most so far."""
        return self._peak - self._before

    def __enter__(self) -> ResidentPeak:
        """Begin to look."""
        gc.collect()
        self._before = self._peak = _resident() or 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop looking."""
        self._done.set()
        self._thread.join()
        self.grown = self.seen if _STATM.exists() else None

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self._peak = max(self._peak, _resident() or 0)


def _resident() -> int | None:
    if not _STATM.exists():
        return None
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_request(session: Session, token_ids: tuple[int, ...], policy: ReusePolicy) -> dict[str, Any]:
    """Serve one request and store it; return its processor time by stage and what memory it took beside its K/V."""
    stages, engine = CpuStages(), session.engine
    token_bytes = engine.support.layout.token_bytes
    spare, stored = engine.preparer.slabs.kept_bytes, engine.cache.stats().stored_bytes
    with ResidentPeak() as peak, stages.installed():
        start = time.process_time()
        report = session.store(token_ids, policy)
        whole_s = time.process_time() - start
    kv_bytes = max(token_bytes * len(token_ids) - spare, 0) + engine.cache.stats().stored_bytes - stored
    known_s = sum(stages.seconds.values())
    return {
        "prompt_tokens": report.prompt_tokens,
        "reused_tokens": report.reused_tokens,
        "computed_tokens": report.prompt_tokens - report.reused_tokens,
        "cpu_s": whole_s,
        "stages_cpu_s": {**stages.seconds, "forward": max(whole_s - known_s, 0.0)},
        "kv_bytes": kv_bytes,
        "extra_bytes": None if peak.grown is None else max(peak.grown - kv_bytes, 0),
    }
