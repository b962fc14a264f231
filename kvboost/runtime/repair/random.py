"""Random repair: the control that every other strategy has to beat at the same budget."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from kvboost.runtime.repair.base import RepairContext, Selection


class RandomRepair:
    """Recompute reused tokens drawn at random, always the same ones for the same prompt."""

    def select(self, context: RepairContext) -> Selection:
        """Return as many positions as the budget pays for, drawn without replacement; choosing costs nothing."""
        candidates = context.candidates
        count = min(int(context.budget_tokens), len(candidates))
        generator = torch.Generator().manual_seed(_seed(context.token_ids))
        drawn = torch.randperm(len(candidates), generator=generator)[:count].to(candidates.device)
        return Selection(candidates[drawn].sort().values)


def _seed(token_ids: Tensor) -> int:
    """Return a seed made of the prompt's token ids."""
    digest = hashlib.blake2b(token_ids.cpu().numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
