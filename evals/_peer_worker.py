"""One backend of the comparison, in a process of its own: reads commands and writes results, one JSON object a line.

It is run as a file by the interpreter of the environment that the backend is installed in, so it imports nothing of
this project but in the backend ``ours``; there ``kvboost`` is this project, in the peer's environment it is the peer.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import sys
import threading
import time
import warnings
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_KEPT_PROMPTS = 8
_CACHE_BYTES = 2 << 30
_FLUSH_S = 120.0


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
        namespace = self._engine.preparer.namespace
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


BACKENDS = {"transformers": Plain, "own prefix": OwnPrefix, "ours": Ours, "peer": Peer}


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
    start: float, first: float | None, end: float, tokens: list[int], logits: Any, reuse: float
) -> dict[str, Any]:
    raw = None
    if logits is not None:
        raw = base64.b64encode(logits.float().reshape(-1).numpy().tobytes()).decode()
    ttft = None if first is None else first - start
    return {"ttft_s": ttft, "call_s": end - start, "tokens": tokens, "logits": raw, "reuse": reuse}


def _together(backend: Plain, prompts: list[str], new_tokens: int) -> list[dict[str, Any]]:
    """Answer all prompts at the same time, one thread each; an error is that prompt's answer."""
    answers: list[dict[str, Any]] = [{} for _ in prompts]

    def one(at: int) -> None:
        try:
            answers[at] = backend.generate(prompts[at], new_tokens)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises in a thread is its result
            answers[at] = {"error": f"{type(error).__name__}: {error}"}

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def main() -> None:
    """Serve the commands on standard input until it ends."""
    # Libraries print; the results need a line of their own.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    settings = json.loads(sys.argv[1])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32).eval()
    backend = BACKENDS[settings["backend"]](model, tokenizer, settings)
    print(json.dumps({"ready": True}), file=results, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answers: list[dict[str, Any]] = []
        if command["do"] == "reset":
            backend.reset()
        elif len(command["prompts"]) == 1:
            answers = [backend.generate(command["prompts"][0], command["new_tokens"])]
        else:
            answers = _together(backend, command["prompts"], command["new_tokens"])
        backend.settle()
        print(json.dumps({"answers": answers}), file=results, flush=True)


if __name__ == "__main__":
    main()
