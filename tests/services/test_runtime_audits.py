"""What a runtime tells of its audits: counts, loss, and how strictly each tier is served."""

from __future__ import annotations

import pytest

from kvboost.client.convert_runtime import runtime_info_from_proto
from kvboost.policy import ReusePolicy
from kvboost.runtime.batching.batch import BatchState
from kvboost.services.runtime_server import ServedModel
from kvboost.services.runtime_server.messages import info_to_proto
from kvboost.types import Tier
from tests.boosting import boosted, document, engine_of, prompt, settle, tokenizer, warm

POLICY = ReusePolicy(tiers=(Tier.PREFIX, Tier.EXACT), audit_rate=1.0, recompute_ratio=0.3, max_kl=1e-9)
IDLE = BatchState(running=0, waiting=0, max_batch=8, max_queue=64, obstacle="")


def test_describe_tells_how_each_approximate_tier_stands() -> None:
    one, two, three = document(1), document(2), document(3)
    with boosted(policy=POLICY) as model:
        engine = engine_of(model)
        served = ServedModel(engine, tokenizer(), "tiny")
        (before,) = runtime_info_from_proto(info_to_proto(served, IDLE)).audits
        assert (before.tier, before.audits, before.violations, before.mean_kl) == (Tier.EXACT, 0, 0, None)
        assert (before.recompute_ratio, before.rate_bounds, before.off) == (0.3, (0.0, 1.0), False)

        warm(model, prompt(one, two, three))
        for first in (document(4), document(5)):
            model.generate(prompt(first, three, one), do_sample=False, max_new_tokens=2)
            settle(model)
        engine.audit.flush()
        (after,) = runtime_info_from_proto(info_to_proto(served, IDLE)).audits
    assert (after.audits, after.violations) == (2, 2)  # no reuse off its history is exact to 1e-9 nats
    assert after.mean_kl == pytest.approx(sum(r.difference.kl_first for r in engine.audit.log.records()) / 2)
    assert after.mean_kl > 0
    # Two violations in two audits are enough to serve the tier more strictly, and to begin counting anew.
    assert after.recompute_ratio > before.recompute_ratio
    assert after.rate_bounds == (0.0, 1.0)
