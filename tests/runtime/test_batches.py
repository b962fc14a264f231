"""Left-padded batches: each row is served on its own and comes out as without reuse."""

import pytest
import torch

from kvboost.policy import ReusePolicy
from kvboost.types import Tier
from tests.boosting import boosted, document, new_cache, plain, prompt, reused, step_logits, warm

SHARED = [document(1), document(2)]
ROWS = {
    "long": prompt(*SHARED, document(3)),
    "short": prompt(document(4)),
    "shared": prompt(*SHARED),
    "fresh": prompt(document(5), document(6)),
    "tiny": torch.tensor([[1]]),
}
PREFIX = ReusePolicy(tiers=("prefix",))
EXACT = {"do_sample": False, "max_new_tokens": 10}


def batch(*names, width=None):
    """Return left-padded ids and their mask."""
    rows = [ROWS[name][0] for name in names]
    width = width or max(len(row) for row in rows)
    ids = torch.stack([torch.cat([row.new_zeros(width - len(row)), row]) for row in rows])
    mask = torch.stack([torch.cat([torch.zeros(width - len(row)), torch.ones(len(row))]) for row in rows]).long()
    return ids, mask


@pytest.fixture
def model():
    with boosted(policy=PREFIX) as model:
        warm(model, ROWS["long"], ROWS["short"])
        yield model


ORDERS = [
    ("long", "short"),
    ("short", "long", "fresh"),
    ("fresh", "tiny", "shared", "long"),
    ("tiny", "long"),
    ("shared", "shared"),
    ("fresh",),
]


@pytest.mark.parametrize("masked", [True, False], ids=["mask", "inferred mask"])
@pytest.mark.parametrize("names", ORDERS, ids="-".join)
def test_a_batch_gives_what_the_plain_call_gives(model, names, masked):
    ids, mask = batch(*names)
    extra = {"attention_mask": mask} if masked else {}
    expected = plain(model, ids, **extra, **EXACT)
    assert torch.equal(model.generate(ids, **extra, **EXACT), expected)
    assert torch.equal(model.generate(ids, **extra, **EXACT), expected)  # now from a warm cache
    assert model.last_reuse.prompt_tokens == int(mask.sum())


def test_a_padded_single_row(model):
    ids, mask = batch("long", width=ROWS["long"].shape[1] + 7)
    assert torch.equal(
        model.generate(ids, attention_mask=mask, **EXACT), plain(model, ids, attention_mask=mask, **EXACT)
    )
    assert reused(model, Tier.PREFIX) == ROWS["long"].shape[1] - 1


@pytest.mark.parametrize("arch", ["gemma3", "phi", "gpt2", "bloom", "gpt_neox", "cohere2"])
def test_other_architectures_in_a_batch(arch):
    ids, mask = batch("long", "short", "fresh")
    with boosted(arch, policy=PREFIX) as model:
        warm(model, ROWS["long"])
        expected, logits = step_logits(model, ids, plainly=True, attention_mask=mask)
        found, found_logits = step_logits(model, ids, attention_mask=mask)
        assert model.last_reuse.rows[0].tokens_by_tier[Tier.PREFIX] == ROWS["long"].shape[1] - 1
        assert torch.equal(found, expected)
        torch.testing.assert_close(found_logits, logits, atol=2e-4, rtol=1e-3)


def test_rows_are_reported_one_by_one(model):
    ids, mask = batch("short", "fresh", "long")
    model.generate(ids, attention_mask=mask, **EXACT)
    report = model.last_reuse
    assert [row.prompt_tokens for row in report.rows] == mask.sum(1).tolist()
    short, fresh, long = (row.reused_tokens for row in report.rows)
    assert (short, long) == (ROWS["short"].shape[1] - 1, ROWS["long"].shape[1] - 1)
    assert fresh < 20
    assert sum(report.tokens_by_tier.values()) == report.prompt_tokens == int(mask.sum())


def test_what_a_batch_computed_is_stored_without_its_padding(model):
    ids, mask = batch("fresh", "long")
    model.generate(ids, attention_mask=mask, **EXACT)
    model.generate(ROWS["fresh"], **EXACT)
    assert reused(model, Tier.PREFIX) == ROWS["fresh"].shape[1] - 1


def test_stored_rows_of_a_batch_hold_their_own_values():
    ids, mask = batch("tiny", "fresh", "long")
    with boosted(policy=PREFIX) as model:
        model.generate(ids, attention_mask=mask, **EXACT)
        for name in ("fresh", "long"):
            expected, logits = step_logits(model, ROWS[name], plainly=True)
            found, found_logits = step_logits(model, ROWS[name])
            assert reused(model, Tier.PREFIX) == ROWS[name].shape[1] - 1
            assert torch.equal(found, expected)
            torch.testing.assert_close(found_logits, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 3, "do_sample": False},
        {"num_beams": 2, "num_return_sequences": 2, "do_sample": False},
        {"num_return_sequences": 2, "do_sample": True},
        {"do_sample": True},
    ],
    ids=["beams", "two beams each", "two samples each", "sampling"],
)
def test_beams_and_samples_of_a_batch(model, settings):
    ids, mask = batch("long", "fresh", "short")
    arguments = {"attention_mask": mask, "max_new_tokens": 10, **settings}
    for _ in range(2):  # the second time all rows are cached
        torch.manual_seed(3)
        expected = plain(model, ids, **arguments)
        torch.manual_seed(3)
        assert torch.equal(model.generate(ids, **arguments), expected)


def test_beams_store_prompts_that_can_be_reused(model):
    model.generate(ROWS["fresh"], num_beams=3, do_sample=False, max_new_tokens=8)
    _, logits = step_logits(model, ROWS["fresh"], plainly=True)
    _, found = step_logits(model, ROWS["fresh"])
    assert reused(model, Tier.PREFIX) == ROWS["fresh"].shape[1] - 1
    torch.testing.assert_close(found, logits, atol=1e-4, rtol=1e-4)


def test_beams_store_no_answer_under_another_beams_values(model):
    for seed in range(20, 26):
        ids = prompt(document(seed))
        answer = model.generate(ids, num_beams=4, do_sample=False, max_new_tokens=24)
        turn = torch.cat([answer, torch.tensor([[19, 204, 60, 77, 321]])], 1)
        _, logits = step_logits(model, turn, plainly=True, max_new_tokens=1)
        _, found = step_logits(model, turn, max_new_tokens=1)
        torch.testing.assert_close(found, logits, atol=1e-4, rtol=1e-4)


def test_rows_that_end_early_store_nothing_wrong(model):
    ids, mask = batch("long", "fresh")
    ends = plain(model, ids, attention_mask=mask, **EXACT)[0, ids.shape[1] + 2].item()
    model.generation_config.eos_token_id = [2, ends]
    model.generate(ids, attention_mask=mask, **EXACT)
    for name in ("long", "fresh"):
        _, logits = step_logits(model, ROWS[name], plainly=True)
        torch.testing.assert_close(step_logits(model, ROWS[name])[1], logits, atol=1e-4, rtol=1e-4)


def test_documents_in_another_order_within_a_batch():
    """Approximate rows have no plain answer to compare with, so a row must come out as it does alone."""
    a, b, c = (document(i) for i in (11, 12, 13))
    policy = ReusePolicy(repair="none")
    cache = new_cache()
    with boosted(cache=cache, policy=policy) as model:
        warm(model, prompt(a, b, c))
        swapped = prompt(b, c, a)
        alone, alone_logits = step_logits(model, swapped)
        assert reused(model, Tier.EXACT) > 100
        ids = torch.cat([swapped, prompt(b, c, a)])
        both, logits = step_logits(model, ids)
        assert torch.equal(both[0], alone[0])
        assert torch.equal(both[1], alone[0])
        torch.testing.assert_close(logits[0::2][0], alone_logits[0], atol=1e-3, rtol=1e-3)


def test_without_a_mask_end_tokens_are_no_padding_where_both_are_one(model):
    ids = torch.cat([torch.tensor([[2]]), ROWS["long"][:, :90], torch.tensor([[2]]), ROWS["short"]], 1)
    model.generation_config.pad_token_id = 2
    for _ in range(2):
        assert torch.equal(model.generate(ids, **EXACT), plain(model, ids, **EXACT))
        assert model.last_reuse.declined == ()
    assert reused(model, Tier.PREFIX) == ids.shape[1] - 1
