"""The runtime service over a tiny model, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from torch.nn import functional
from transformers import PreTrainedModel

from kvboost.client import RuntimeClient
from kvboost.config import Config
from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.runtime.batching import Batch
from kvboost.services.grpc_server import start_server
from kvboost.services.runtime_server import SERVICE_NAME, RuntimeServicer, ServedModel
from kvboost.wire.address import parse_address
from tests.boosting import boosted, engine_of, new_cache, tokenizer
from tests.tiny_models import tiny_model


@dataclass(frozen=True)
class Running:
    """A running service."""

    client: RuntimeClient
    served: ServedModel
    batch: Batch
    cache: LocalCache

    @property
    def model(self) -> Any:
        return self.served.engine.model


@contextmanager
def runtime_service(
    model: PreTrainedModel | None = None,
    policy: ReusePolicy | None = None,
    cache: LocalCache | None = None,
    config: Config | None = None,
    publishes: bool = False,
    **limits: int,
) -> Iterator[Running]:
    """Serve a model whose answers are as long as asked for; ``limits`` as of :class:`Batch`."""
    if model is None:
        model = tiny_model("llama")
        model.generation_config.eos_token_id = None
    cache = cache or new_cache()
    with boosted(model=model, cache=cache, policy=policy, config=config):
        batch = Batch(engine_of(model), **limits)
        served = ServedModel(batch.engine, tokenizer(), "tiny", "", publishes)
        register = RuntimeServicer(served, batch).register
        server = start_server(register, [SERVICE_NAME], [parse_address("127.0.0.1:0")], workers=32)
        client = RuntimeClient(str(server.addresses[0]))
        try:
            yield Running(client, served, batch, cache)
        finally:
            client.close()
            server.stop(0)
            batch.close()


@contextmanager
def slow(model: Any, step_s: float = 0.02) -> Iterator[list[int]]:
    """Delay every forward pass; the list counts them. A hook would make another model of it."""
    steps, embed = [0], functional.embedding

    def delayed(ids: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        if weight is model.get_input_embeddings().weight:
            steps[0] += 1
            time.sleep(step_s)
        return embed(ids, weight, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "embedding", delayed)
        yield steps
