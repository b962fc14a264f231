"""What a prompt would reuse, without running it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvboost.errors import PromptTooLongError
from kvboost.policy import ReusePolicy
from kvboost.reuse import ReuseReport
from kvboost.runtime.prepare.prepared import Prepared
from kvboost.runtime.serve.engine import Engine


@torch.no_grad()
def explain(engine: Engine, token_ids: Sequence[int]) -> ReuseReport:
    """Prepare a prompt of ``N`` tokens as a request would be; nothing is generated, nothing stored.

    The report's ``ttft_s`` is 0: there is no first token.

    Raises
    ------
    PromptError
        If the prompt is empty or longer than the model's context.
    """
    check_fits(engine, token_ids)
    engine.writer.flush()
    return engine.costs.priced(prepare(engine, token_ids, 0).report(0.0))


def prepare(engine: Engine, token_ids: Sequence[int], new_tokens: int, policy: ReusePolicy | None = None) -> Prepared:
    """Prepare a prompt for the model as it is now: with nothing reused where a request would be declined."""
    obstacle = engine.obstacle(len(token_ids))
    if obstacle:
        return engine.preparer.complete(engine.preparer.blank(token_ids, new_tokens, obstacle))
    return engine.preparer.prepare(token_ids, new_tokens, policy)


def check_fits(engine: Engine, token_ids: Sequence[int]) -> None:
    """Raise :class:`PromptTooLongError` for a prompt that is longer than the model's context."""
    limit = getattr(engine.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if limit is not None and len(token_ids) > limit:
        raise PromptTooLongError(
            f"the prompt has {len(token_ids)} tokens, the model's context holds {limit}; shorten the prompt"
        )


def run_and_store(engine: Engine, token_ids: Sequence[int]) -> None:
    """Prefill a prompt, generate one token, and wait until the cache has taken what is new."""
    ids = torch.tensor([list(token_ids)], device=engine.model.device)
    engine.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False)
    engine.writer.flush()
