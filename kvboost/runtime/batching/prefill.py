"""The prefill of one prompt, in one pass or in pieces between the steps of other rows."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvboost.runtime.kv.splice import Splice


class Prefill:
    """Computes what a prompt does not reuse.

    The first pass takes the scattered tokens, as the single path does, or of a long prompt one of its pieces, which
    are the same whoever runs beside it; what is left of the tail after them is an ordinary suffix, and can be cut
    anywhere.

    Parameters
    ----------
    in_pieces
        Whether the prompt may be cut.
    """

    def __init__(self, model: PreTrainedModel, splice: Splice, in_pieces: bool) -> None:
        self._model = model
        self._splice = splice
        self._in_pieces = in_pieces

    @property
    def left(self) -> int:
        """Tokens that are not computed yet."""
        return len(self._splice.scattered) + len(self._splice.token_ids) - self._splice.tail_start

    def advance(self, max_tokens: int | None) -> Tensor | None:
        """Compute ``max_tokens`` more, or all (None); of scattered tokens as many together as go into one pass.

        Returns
        -------
        Tensor or None
            ``[1, vocab]``, the logits of the prompt's last token; None while some are left.
        """
        splice = self._splice
        length = len(splice.token_ids)
        end = length
        if self._in_pieces and max_tokens is not None:
            if len(splice.scattered) > 0:
                self._splice = splice.one_ahead(self._model, length)
                if self._splice is not splice:
                    return None
            end = min(length, splice.tail_start + max(max_tokens - len(splice.scattered), 1))
        logits = splice.run(self._model, end)
        if end == length:
            return logits
        nothing = torch.empty(0, dtype=torch.long, device=splice.token_ids.device)
        self._splice = Splice(splice.cache, splice.token_ids, nothing, end, None, splice.support)
        return None
