"""A pipeline that only wants the cache: warm documents, ask what a prompt would find, read an answer's report.

kvboost serve-cache --unix /tmp/kvboost.sock
kvboost serve-runtime --cache unix:/tmp/kvboost.sock
python examples/grpc_pipeline.py 127.0.0.1:7462 [MODEL DIRECTORY]
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing

from corpus import DOCUMENTS, QUESTIONS, best
from transformers import AutoTokenizer

from kvboost import CacheClient
from kvboost.client import RuntimeClient
from kvboost.documents import marked
from kvboost.runtime.model.demo_model import demo_model_dir
from kvboost.segment import Segmenter
from kvboost.types import MatchQuery


def main(runtime_address: str, model_dir: str | None = None) -> None:
    """Print what was stored, what is found, and what an answer reused."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir or demo_model_dir())
    prompt = marked(DOCUMENTS[name] for name in best(QUESTIONS[0])) + QUESTIONS[0]
    with closing(RuntimeClient(runtime_address)) as runtime:
        for receipt in runtime.warm([marked([text]) for text in DOCUMENTS.values()]):
            print(f"document {receipt.index}: {receipt.tokens} tokens, {receipt.stored_chunks} new chunks")
        info = runtime.describe()
        with closing(CacheClient(info.cache_address)) as cache:
            cache.open(info.namespace)
            ids = tuple(tokenizer(prompt)["input_ids"])
            found = cache.match(MatchQuery(info.namespace.key, ids, Segmenter(tokenizer).segment(ids).chunks))
        tiers = Counter()
        for match in found.matches:
            tiers[str(match.tier)] += len(match.target)
        print(f"found {dict(tiers)} of {len(ids)} tokens")
        report = runtime.answer(prompt, max_new_tokens=16).report
        print(f"reused {report.reused_tokens}, repaired {report.recomputed_tokens}, first token {report.ttft_s:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["127.0.0.1:7462"])
