"""One runtime of the throughput eval: loads the model, waits for the word, serves its requests."""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

import torch

from evals._clocks import as_batch
from kvboost.api import boost, engine_of
from kvboost.build import build_embedder
from kvboost.config import EmbedderConfig
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.protocols import ChunkCache
from kvboost.runtime.model.demo_model import load_model

_CACHE_BYTES = 4 << 30
_WARM_UP_TOKENS = 64


def main() -> None:
    """Serve the lists of requests on standard input until it ends."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    model, tokenizer = load_model(settings["model"], device="cpu")
    cache: ChunkCache | str = settings["address"]
    if not cache:
        embedder = build_embedder(EmbedderConfig(model=settings["embedder"]))
        if embedder is not None:
            embedder.embed(["warm-up"])
        cache = LocalCache(_CACHE_BYTES, embedder)
    boost(model, tokenizer, cache, ReusePolicy(audit_rate=0.0))
    model.generate(as_batch(range(3, 3 + _WARM_UP_TOKENS), "cpu"), max_new_tokens=2, do_sample=False)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(_serve(model, command["prompts"], command["new_tokens"])), flush=True)


def _serve(model: Any, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    reports = []
    answered = 0
    start = time.perf_counter()
    for prompt in prompts:
        ids = as_batch(prompt, "cpu")
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False)
        answered += out.shape[1] - len(prompt)
        reports.append(model.last_reuse)
    seconds = time.perf_counter() - start
    engine_of(model).writer.flush(60.0)
    return {
        "seconds": seconds,
        "requests": len(prompts),
        "answer_tokens": answered,
        "prompt_tokens": sum(report.prompt_tokens for report in reports),
        "reused_tokens": sum(report.reused_tokens for report in reports),
        "fallbacks": sum(report.fallback is not None for report in reports),
        "ttft_s": [report.ttft_s for report in reports],
        "ttft_median_s": median(report.ttft_s for report in reports),
    }


if __name__ == "__main__":
    main()
