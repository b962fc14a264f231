"""The choice of one row's next token, by transformers' own processors and a generator of the row's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.attention.transformers_api import logits_processors
from kvboost.runtime.serve.answer import generation_arguments
from kvboost.sampling import Sampling

_ROOM_TOKENS = 64


class Sampler:
    """Chooses the tokens of one row as ``generate()`` would choose them for this row alone.

    The processors come from transformers for the settings of this row, so no row takes another's temperature; the
    random numbers come from a generator of this row's, so its answer does not depend on its neighbours.

    Parameters
    ----------
    prompt_ids
        ``N`` tokens: some processors look at what was said before.
    """

    def __init__(self, model: PreTrainedModel, sampling: Sampling, prompt_ids: Sequence[int]) -> None:
        wanted = generation_arguments(model, sampling)
        self._processors, self._draws = logits_processors(model, wanted, len(prompt_ids))
        self._ids = torch.tensor([prompt_ids], device=model.device)
        self._count = len(prompt_ids)
        self._generator = torch.Generator(model.device)
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    @property
    def plain(self) -> bool:
        """Whether the most likely token is taken, whatever came before."""
        return not self._draws and len(self._processors) == 0

    def choose(self, logits: Tensor) -> int:
        """Return the next token for ``logits`` ``[1, vocab]``."""
        scores = logits.to(torch.float32, copy=True)
        if len(self._processors) > 0:
            scores = self._processors(self._ids[:, : self._count], scores)
        if self._draws:
            token = int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))
        else:
            token = int(scores.argmax(-1))
        return token

    def note(self, token_id: int) -> None:
        """Remember a token that was chosen."""
        if self._count == self._ids.shape[1]:
            # Half as much again: over a long answer each id is copied a few times, not once a token.
            self._ids = torch.cat([self._ids, self._ids.new_empty(1, self._count // 2 + _ROOM_TOKENS)], dim=1)
        self._ids[0, self._count] = token_id
        self._count += 1
