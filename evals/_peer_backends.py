"""The backends of the comparison with peers.

The interpreter of each backend's own environment runs this, so it imports nothing of this project but in the backend
``ours``; there ``kvboost`` is this project, in the peer's environment it is the peer.
"""

from __future__ import annotations

import base64
import copy
import threading
import time
from typing import Any

import torch

_KEPT_PROMPTS = 8
_CACHE_BYTES = 2 << 30
_FLUSH_S = 120.0
# Pages of 32 tokens share almost as much as our chunks do; 256, the default, is more than half of a quick prompt.
_PAGE_TOKENS = 32
_PAGES = 1024
_BATCH_TOKENS = 8192


class Listener:
    """A streamer that keeps the time of the first new token."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Take the prompt, then token after token."""
        if self._prompt_seen and self.first_s is None:
            self.first_s = time.perf_counter()
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is left to do."""


class Plain:
    """Plain transformers, nothing reused."""

    def __init__(self, model: Any, tokenizer: Any, settings: dict[str, Any]) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def reset(self) -> None:
        """Forget all prompts."""

    def settle(self) -> None:
        """Finish what goes on in the background."""

    def close(self) -> None:
        """End what runs in the background."""

    def past(self, ids: list[int]) -> tuple[Any, int]:
        """Return a cache with leading tokens of the prompt, and how many."""
        return None, 0

    def keep(self, ids: list[int], cache: Any) -> None:
        """See the cache after an answer."""

    @torch.no_grad()
    def generate(self, prompt: str, new_tokens: int) -> dict[str, Any]:
        """Answer greedily; all times run from here."""
        listener = Listener()
        start = time.perf_counter()
        ids = torch.tensor([self.tokenizer(prompt)["input_ids"]])
        cache, reused = self.past(ids[0].tolist())
        given = {} if cache is None else {"cache": cache}
        result = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            streamer=listener,
            return_dict_in_generate=True,
            output_logits=True,
            **given,
        )
        end = time.perf_counter()
        self.keep(ids[0].tolist(), result.cache)
        tokens = result.sequences[0, ids.shape[1] :].tolist()
        return _answer(start, listener.first_s, end, tokens, result.logits[0][0], reused / ids.shape[1])


class OwnPrefix(Plain):
    """Transformers' own prefix reuse: the caches of the last prompts, copied and cropped to what is shared."""

    def __init__(self, model: Any, tokenizer: Any, settings: dict[str, Any]) -> None:
        super().__init__(model, tokenizer, settings)
        self._kept: list[tuple[list[int], Any]] = []
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Forget all prompts."""
        self._kept = []

    def past(self, ids: list[int]) -> tuple[Any, int]:
        """Return a copy of the cache that shares most leading tokens."""
        with self._lock:
            kept = list(self._kept)
        shared, best = max(((_common(known, ids[:-1]), cache) for known, cache in kept), default=(0, None), key=_first)
        if shared == 0:
            return None, 0
        cache = copy.deepcopy(best)
        _crop(cache, shared)
        return cache, shared

    def keep(self, ids: list[int], cache: Any) -> None:
        """Keep the prompt's part of the cache."""
        _crop(cache, len(ids))
        with self._lock:
            self._kept = [*self._kept, (ids, cache)][-_KEPT_PROMPTS:]


class Batching(Plain):
    """Transformers' continuous batching with its prefix sharing, on the CPU with paged ``sdpa``."""

    def __init__(self, model: Any, tokenizer: Any, settings: dict[str, Any]) -> None:
        super().__init__(model, tokenizer, settings)
        self._manager: Any = None
        self.reset()

    def reset(self) -> None:
        """Start anew, with empty pages."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self.close()
        ends = self.model.generation_config.eos_token_id
        asked = GenerationConfig(do_sample=False, eos_token_id=-1 if ends is None else ends, pad_token_id=0)
        pages = ContinuousBatchingConfig(page_size=_PAGE_TOKENS, num_blocks=_PAGES, max_batch_tokens=_BATCH_TOKENS)
        self._manager = self.model.init_continuous_batching(asked, pages)
        self._manager.start()

    def close(self) -> None:
        """Stop its thread."""
        if self._manager is not None:
            self._manager.stop(block=True, timeout=_FLUSH_S)
            self._manager = None

    def generate(self, prompt: str, new_tokens: int) -> dict[str, Any]:
        """Answer greedily; it gives no logits, and does not say what it shared."""
        start, first, tokens = time.perf_counter(), None, []
        ids = self.tokenizer(prompt)["input_ids"]
        request = self._manager.add_request(ids, max_new_tokens=new_tokens, streaming=True)
        for output in self._manager.request_id_iter(request):
            if output.error is not None:
                raise RuntimeError(output.error)
            tokens = list(output.generated_tokens)
            if first is None and tokens:
                first = time.perf_counter()
        return _answer(start, first, time.perf_counter(), tokens, None, None)


class Ours(Plain):
    """This project, in one process, as ``kvboost.boost`` gives it; without audits, as they would run in between."""

    def __init__(self, model: Any, tokenizer: Any, settings: dict[str, Any]) -> None:
        super().__init__(model, tokenizer, settings)
        import kvboost
        from kvboost.api import engine_of
        from kvboost.build import build_embedder
        from kvboost.config import EmbedderConfig
        from kvboost.index import LocalCache

        self._cache = LocalCache(_CACHE_BYTES, build_embedder(EmbedderConfig(model=settings["embedder"])))
        kvboost.boost(model, tokenizer, self._cache, kvboost.ReusePolicy(audit_rate=0.0))
        self._engine = engine_of(model)

    def reset(self) -> None:
        """Forget all prompts."""
        namespace = self._engine.namespace
        self.settle()
        self._cache.drop(namespace.key)
        self._cache.open(namespace)

    def settle(self) -> None:
        """Wait until the chunks of the last answer are stored and embedded."""
        self._engine.writer.flush(_FLUSH_S)
        self._cache.flush(_FLUSH_S)

    def generate(self, prompt: str, new_tokens: int) -> dict[str, Any]:
        """Answer greedily with reuse."""
        answer = super().generate(prompt, new_tokens)
        report = self.model.last_reuse
        return {**answer, "reuse": report.reused_tokens / report.prompt_tokens}


class Peer(Plain):
    """The registry's ``kvboost`` package."""

    def __init__(self, model: Any, tokenizer: Any, settings: dict[str, Any]) -> None:
        super().__init__(model, tokenizer, settings)
        import kvboost

        self._engine: Any = vars(kvboost)["KVBoost"](
            model=model,
            tokenizer=tokenizer,
            max_cache_bytes=_CACHE_BYTES,
            recompute_strategy=settings["peer_strategy"],
            device="cpu",
        )

    def reset(self) -> None:
        """Forget all prompts."""
        self._engine.reset_cache()

    def generate(self, prompt: str, new_tokens: int) -> dict[str, Any]:
        """Answer greedily; the first token's time comes from its callback."""
        tokens: list[int] = []
        first: list[float] = []

        def heard(token: int) -> None:
            if not first:
                first.append(time.perf_counter())
            tokens.append(int(token))

        start = time.perf_counter()
        result = self._engine.generate(prompt, max_new_tokens=new_tokens, on_token=heard)
        end = time.perf_counter()
        logits = getattr(result, "first_token_logits", None)
        given = None if logits is None else torch.as_tensor(logits)
        return _answer(start, first[0] if first else None, end, tokens, given, float(result.kv_reuse_ratio))


BACKENDS = {
    "transformers": Plain,
    "own prefix": OwnPrefix,
    "continuous batching": Batching,
    "ours": Ours,
    "peer": Peer,
}


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _crop(cache: Any, tokens: int) -> None:
    """Keep the first ``tokens``."""
    surplus = cache.get_seq_length() - tokens
    if surplus > 0:
        cache.crop(-surplus)


def _common(left: list[int], right: list[int]) -> int:
    shortest = min(len(left), len(right))
    return next((i for i in range(shortest) if left[i] != right[i]), shortest)


def _answer(
    start: float, first: float | None, end: float, tokens: list[int], logits: Any, reuse: float | None
) -> dict[str, Any]:
    raw = None
    if logits is not None:
        raw = base64.b64encode(logits.float().reshape(-1).numpy().tobytes()).decode()
    ttft = None if first is None else first - start
    return {"ttft_s": ttft, "call_s": end - start, "tokens": tokens, "logits": raw, "reuse": reuse}
