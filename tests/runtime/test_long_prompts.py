"""Long prompts: passes in pieces of bounded memory, and no work that grows faster than the prompt."""

from types import SimpleNamespace

import pytest
import torch

from kvboost.policy import ReusePolicy
from kvboost.runtime.attention import masks, recording
from kvboost.runtime.attention.masks import position_masks, rows_at_once
from kvboost.runtime.attention.recording import AttentionRecorder, recorded_attention
from kvboost.runtime.batching.prefill import Prefill
from kvboost.runtime.kv import splice as splicing
from kvboost.runtime.kv.harvest import new_chunks
from kvboost.runtime.kv.residual_shift import FADE_TOKENS, plan_shift
from kvboost.runtime.kv.slab import SlabCache
from kvboost.runtime.kv.splice import Splice
from kvboost.runtime.model.support import examine
from kvboost.runtime.plan.diff import InOrder
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.runtime.plan.planner import build_plan
from kvboost.runtime.prepare.report import tier_spans
from kvboost.runtime.repair import DeviationRepair
from kvboost.types import Chunk, Donor, KVLayout, Match, Segmentation, Span, Tier
from tests.boosting import boosted, document, prompt, warm
from tests.operations import operations
from tests.runtime.repair.scenes import scene
from tests.tiny_models import random_ids, tiny_model

LENGTH = 240
CASES = [("llama", "sdpa"), ("llama", "eager"), ("gemma3", "sdpa"), ("mistral", "sdpa")]


def donor(number, length, start=0):
    return Donor(number, tuple(range(length)), start, b"%d" % number, b"%d" % (number + 1), True)


def filled_slab(model):
    slab = SlabCache(examine(model).layout, LENGTH + 8)
    slab.key_slab.normal_(generator=torch.Generator().manual_seed(1))
    slab.value_slab.normal_(generator=torch.Generator().manual_seed(2))
    return slab


def two_runs():
    """Return ``[0, 100)`` and ``[100, 220)``, reused from two sequences."""
    return InOrder([Span(0, 100), Span(100, 220)])


@torch.no_grad()
def computed(model, monkeypatch, elements, plan=None, in_steps=False, tail_start=220):
    """Return logits, K/V and the widest masks of a splice, with masks of at most ``elements``."""
    monkeypatch.setattr(masks, "MASK_ELEMENTS", elements)
    seen = []

    def watched(model, positions, length, filled=None):
        mask = position_masks(model, positions, length, filled)
        seen.append((next(iter(mask.values())) if isinstance(mask, dict) else mask).numel())
        return mask

    monkeypatch.setattr(splicing, "position_masks", watched)
    slab, ids = filled_slab(model), random_ids(LENGTH)[0]
    scattered = torch.tensor([*range(10, 70, 2), *range(110, 200, 3)])
    splice = Splice(slab, ids, scattered, tail_start, plan, examine(model))
    if in_steps:
        prefill = Prefill(model, splice, in_pieces=True)
        logits = None
        while logits is None:
            logits = prefill.advance(16)
        slab.set_length(LENGTH)
    else:
        logits = splice.run(model, LENGTH)
    return logits, slab.key_slab[..., :LENGTH, :].clone(), slab.value_slab[..., :LENGTH, :].clone(), seen


def assert_same(found, wanted):
    for ours, theirs in zip(found[:3], wanted[:3], strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize(("arch", "attention"), CASES)
def test_a_pass_in_pieces_computes_the_same_under_smaller_masks(arch, attention, in_steps, monkeypatch):
    model = tiny_model(arch, attn_implementation=attention)
    whole = computed(model, monkeypatch, 1 << 24)
    small = LENGTH * 12 * (4 if attention == "eager" else 1)
    pieces = computed(model, monkeypatch, small, in_steps=in_steps)
    assert len(whole[3]) == 1
    assert len(pieces[3]) >= 3
    assert max(pieces[3]) <= LENGTH * 12
    assert_same(pieces, whole)


def test_a_long_tail_behind_a_gap_goes_in_pieces_too(monkeypatch):
    model = tiny_model("llama")
    widths = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    whole = computed(model, monkeypatch, 1 << 24, tail_start=130)
    wide, widths[:] = max(widths), []
    pieces = computed(model, monkeypatch, LENGTH * 20, tail_start=130)
    assert wide > LENGTH // 2
    assert max(widths) <= 40
    assert_same(pieces, whole)


def test_whole_runs_in_pieces_are_shifted_as_in_one_pass(monkeypatch):
    model = tiny_model("llama")
    whole = computed(model, monkeypatch, 1 << 24, two_runs())
    # A piece might take 41 of the 60 tokens; the second run begins at the 31st.
    pieces = computed(model, monkeypatch, LENGTH * 25, two_runs())
    assert len(pieces[3]) == 2
    assert_same(pieces, whole)
    still = computed(model, monkeypatch, 1 << 24)
    assert not torch.allclose(whole[1], still[1], atol=1e-2)


def test_a_run_longer_than_a_piece_is_shifted_stretch_by_stretch():
    run, positions = Span(10, 110), torch.arange(12, 110, 7)
    before, after = positions[:6], positions[6:]
    border = int(after[0])
    first = plan_shift([run], before, Span(0, border))[0]
    second = plan_shift([run], after, Span(border, 200))[0]
    assert (first.span, second.span) == (Span(10, border), Span(border, 110))
    assert first.rows == slice(0, 6)
    assert second.positions.tolist() == after.tolist()
    profile = (1.0 + torch.arange(100.0) / FADE_TOKENS).rsqrt()  # by depth in the whole run
    wanted = (profile[border - 10 :] / profile[after - 10].mean()).clamp_max(1.0)
    torch.testing.assert_close(second.fade.flatten(), wanted)


def test_generate_in_pieces_answers_as_in_one_pass_and_asks_for_one_token_s_logits(monkeypatch):
    texts = [document(i, sentences=6) for i in range(4)]
    policy = ReusePolicy(recompute_ratio=0.4, question_tokens=8, worth_it=False, audit_rate=0.0)
    arguments = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    found = []
    for elements in (1 << 24, 1 << 11):
        monkeypatch.setattr(masks, "MASK_ELEMENTS", elements)
        widths, rows = [], []
        watched = tiny_model("llama", max_position_embeddings=2048)
        watched.lm_head.register_forward_pre_hook(lambda module, args, rows=rows: rows.append(args[0].shape[1]))
        watched.model.register_forward_pre_hook(
            lambda module, args, kwargs, widths=widths: widths.append(kwargs["input_ids"].shape[1]),
            with_kwargs=True,
        )
        with boosted(model=watched, policy=policy) as model:
            warm(model, prompt(*texts))
            rows.clear()
            widths.clear()
            given = model.generate(prompt(*reversed(texts)), **arguments)
            found.append((given.sequences, torch.cat(given.logits), model.last_reuse, len(widths)))
        assert set(rows) == {1}
    assert found[0][2].recomputed_tokens > 20
    assert found[1][3] > found[0][3] + 3
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][2].tokens_by_tier == found[1][2].tokens_by_tier


def test_deviation_in_pieces_chooses_what_it_chooses_in_one_pass(monkeypatch):
    model = tiny_model("llama")
    chosen = []
    for elements in (1 << 24, 1 << 11):
        monkeypatch.setattr(masks, "MASK_ELEMENTS", elements)
        it = scene(model, random_ids(200)[0], [(0, 60, Tier.EXACT), (80, 160, Tier.EXACT)])
        it.corrupt([5, 40, 41, 42, 100, 131])
        chosen.append(it.select(DeviationRepair, 113).positions.tolist())
    assert chosen == [[5, 40, 41, 42, 100, 131]] * 2  # 107 of the budget are for the pass


@pytest.mark.parametrize("sinks", [False, True])
def test_attention_is_recorded_block_by_block(sinks, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, n, 8, generator=generator) for heads, n in ((4, 9), (2, 30), (2, 30)))
    mask = position_masks(tiny_model("llama"), torch.arange(10, 28, 2), 30)
    given = {"s_aux": torch.randn(4, generator=generator)} if sinks else {}
    found = []
    for elements in (1 << 23, 4 * 30 * 2):
        monkeypatch.setattr(recording, "_SCORE_ELEMENTS", elements)
        recorder = AttentionRecorder(torch.zeros(30))
        output, _ = recorded_attention(torch.nn.Identity(), query, key, value, mask, recorder, **given)
        assert recorder.layers == 1
        found.append((output, recorder.total, recorder.carried))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_masks_are_bounded_at_every_length():
    sdpa, eager = (tiny_model("llama", attn_implementation=kind) for kind in ("sdpa", "eager"))
    for length in (1, 1024, 4096, 1 << 17, 1 << 25):
        assert 1 <= rows_at_once(eager, length) <= rows_at_once(sdpa, length)
        assert rows_at_once(sdpa, length) * length <= max(masks.MASK_ELEMENTS, length)
    assert rows_at_once(sdpa, 4096) == 4096


def many_pieces(count):
    """Return a plan of ``count`` short reused pieces, each a run of its own, every other one lossless."""
    pieces = [
        ReuseSpan(Span(10 * i, 10 * i + 4), donor(3 * i, 4), 0, Tier.SIMILAR if i % 2 else Tier.PREFIX)
        for i in range(count)
    ]
    return Plan(10 * count, tuple(pieces))


def planned(count):
    plan = many_pieces(count)
    matches = [Match(p.target, p.donor, Span(0, 4), Tier.EXACT) for p in plan.reuse]
    ids = [i % 10 for i in range(plan.num_tokens)]
    return lambda: build_plan(ids, matches, [Span(0, plan.num_tokens)], ReusePolicy(), frozenset(Tier), str)


def harvested(count):
    plan = many_pieces(count)
    chunks = tuple(Chunk(Span(5 * i, 5 * i + 5), "") for i in range(2 * count))
    segmenter = SimpleNamespace(segment=lambda ids: Segmentation(chunks, ()))
    keys = values = torch.zeros(1, 1, plan.num_tokens, 2)
    layout = KVLayout(1, 1, 2, 2, "float32")
    return lambda: new_chunks(range(plan.num_tokens), plan, segmenter, keys, values, layout)


def reported(count):
    plan = many_pieces(count)
    recomputed = [p.target.start + 1 for p in plan.reuse[::3]]
    return lambda: tier_spans(plan, recomputed)


def shifted(count):
    runs = [p.target for p in many_pieces(count).reuse]
    positions = torch.tensor([run.start for run in runs])
    return lambda: plan_shift(runs, positions)


@pytest.mark.parametrize("work", [planned, harvested, reported, shifted])
def test_four_times_the_prompt_is_four_times_the_work(work):
    few, many = operations(work(50)), operations(work(200))
    assert many < 4.5 * few


def test_a_report_does_not_look_at_every_token():
    long = Plan(1 << 20, (ReuseSpan(Span(0, 1 << 19), donor(1, 4), 0, Tier.EXACT),))
    assert operations(lambda: tier_spans(long, [5, 6])) < 2000


def test_generate_with_many_chunks_is_linear_work():
    found = []
    for count in (4, 16):
        texts = [document(i, sentences=8) for i in range(count)]
        with boosted(policy=ReusePolicy(audit_rate=0.0, worth_it=False), max_position_embeddings=8192) as model:
            warm(model, prompt(*texts))
            ids = prompt(*reversed(texts))
            found.append(operations(lambda model=model, ids=ids: model.generate(ids, max_new_tokens=1)))
            assert model.last_reuse.reused_tokens > 0.7 * ids.shape[1]
    assert found[1] < 4.5 * found[0]
