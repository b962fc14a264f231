"""The loss of reuse, in one number that is never NaN."""

import math

import pytest
import torch

from kvboost.runtime.audit.divergence import kl_divergence
from kvboost.runtime.tools.score import loss

NEVER = -math.inf


def test_equals_the_definition():
    full, reuse = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0)).unbind()
    p, q = full.double().softmax(-1), reuse.double().softmax(-1)
    expected = (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(kl_divergence(full, reuse).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tokens_that_both_rule_out_add_nothing(dtype):
    full = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    full[:, 3] = NEVER
    assert kl_divergence(full, full.clone()).tolist() == [0.0, 0.0, 0.0]
    assert loss(full, full.clone()).kl_mean == 0.0


def test_a_token_that_only_full_prefill_rules_out_costs_what_the_others_lose():
    full, reuse = torch.tensor([1.0, 2.0, NEVER]), torch.tensor([1.0, 2.0, 2.0])
    p, q = torch.softmax(full, -1), torch.softmax(reuse, -1)
    assert float(kl_divergence(full, reuse)) == pytest.approx(float((p[:2] * (p[:2] / q[:2]).log()).sum()))


@pytest.mark.parametrize("broken", [[1.0, NEVER, 2.0], [math.nan] * 3, [math.inf, 1.0, 2.0], [NEVER] * 3])
def test_a_distribution_that_is_none_or_misses_a_token_is_an_infinite_loss(broken):
    full = torch.tensor([[1.0, 2.0, 3.0]] * 2)
    reuse = torch.tensor([[1.0, 2.0, 3.0], broken])
    assert kl_divergence(full, reuse).tolist() == [0.0, math.inf]
    found = loss(full, reuse)
    assert (found.kl_first, found.kl_mean) == (0.0, math.inf)
