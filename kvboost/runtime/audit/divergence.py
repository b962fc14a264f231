"""How far reuse's next-token distribution is from full prefill's."""

from __future__ import annotations

import torch
from torch import Tensor


def kl_divergence(full: Tensor, reuse: Tensor) -> Tensor:
    """Return KL(full || reuse) in nats, ``[...]`` fp32, for logits ``[..., vocab]``.

    A token that full prefill rules out (a logit of minus infinity) adds nothing. Where reuse rules out a token that
    full prefill does not, or reuse's logits give no distribution at all, the loss is infinite: never NaN, which every
    comparison with a bound would take for none.
    """
    p, q = full.float().log_softmax(-1), reuse.float().log_softmax(-1)
    kl = torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1)
    return torch.where(kl.isnan(), torch.inf, kl).clamp_min(0.0)
