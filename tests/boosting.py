"""Boosted tiny models and prompts of known sentences, for tests that go through ``generate()``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.api import boost, engine_of, unboost
from kvboost.config import Config
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.protocols import ChunkCache, PromptSegmenter
from kvboost.runtime.serve.engine import Engine
from kvboost.segment import Segmenter
from kvboost.types import Donor, Tier
from tests.fakes import NgramEmbedder
from tests.tiny_models import tiny_model, tiny_tokenizer

WORDS = """
water number people country letter mother answer light school father night picture story paper sentence children
ground river mountain table music horse house world family garden summer winter morning evening window street
carry follow change build study learn remember listen watch wonder travel believe across under between always never
""".split()  # noqa: SIM905

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}


@cache
def tokenizer() -> Any:
    return tiny_tokenizer()


@cache
def segmenter() -> Segmenter:
    return Segmenter(tokenizer())


def document(seed: int, sentences: int = 3, words: int = 7) -> str:
    """Return one paragraph without numbers, names or negations."""
    rng = random.Random(seed)
    plain = [w for w in WORDS if w != "never"]
    return " ".join(
        "The " + " ".join(rng.choice(plain) for _ in range(words - 1)) + " together." for _ in range(sentences)
    )


def prompt(*paragraphs: str, question: str = "What did they all say about it today?") -> Tensor:
    """Return the ids ``[1, N]`` of paragraphs and a question, BOS first."""
    text = "\n\n".join([*paragraphs, question])
    return torch.tensor([[1, *tokenizer()(text, add_special_tokens=False).input_ids]])


def new_cache(embedder: Any = None, **settings: Any) -> LocalCache:
    return LocalCache(64 << 20, embedder or NgramEmbedder(), **settings)


def stored_donors(cache: LocalCache, model: PreTrainedModel) -> list[Donor]:
    """Return all chunks that a model's namespace holds, oldest first."""
    with cache._rooms[engine_of(model).preparer.namespace.key].table() as table:
        return table.donors


@contextmanager
def boosted(
    arch: str = "llama",
    cache: ChunkCache | None = None,
    policy: ReusePolicy | None = None,
    model: PreTrainedModel | None = None,
    segmenter_: PromptSegmenter | None = None,
    config: Config | None = None,
    **settings: Any,
) -> Iterator[PreTrainedModel]:
    """Yield a boosted tiny model."""
    model = model if model is not None else tiny_model(arch, **settings)
    boost(model, tokenizer(), cache or new_cache(), policy, segmenter=segmenter_ or segmenter(), config=config)
    try:
        yield model
    finally:
        if hasattr(model, "kvboost_engine"):
            unboost(model)


def plain(model: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
    """Run the class's own ``generate()``."""
    return type(model).generate(model, *args, **kwargs)


def settle(model: PreTrainedModel) -> Engine:
    """Wait until everything is stored and embedded; return the engine."""
    engine = engine_of(model)
    engine.writer.flush()
    assert engine.preparer.cache.flush(10.0)
    return engine


def warm(model: PreTrainedModel, *prompts: Tensor) -> None:
    """Run the prompts through ``generate()`` and wait until they are stored."""
    for ids in prompts:
        model.generate(ids, do_sample=False, max_new_tokens=2)
        settle(model)


def reused(model: PreTrainedModel, tier: Tier) -> int:
    """Return how many tokens of ``tier`` the last request reused."""
    return int(model.last_reuse.tokens_by_tier[tier])


def step_logits(model: PreTrainedModel, ids: Tensor, plainly: bool = False, **settings: Any) -> tuple[Tensor, Tensor]:
    """Return generated sequences and the logits of every step, ``[steps, vocab]`` fp32."""
    arguments: dict[str, Any] = {**GREEDY, **settings, "return_dict_in_generate": True, "output_logits": True}
    result = plain(model, ids, **arguments) if plainly else model.generate(ids, **arguments)
    return result.sequences, torch.cat([step.float() for step in result.logits])
