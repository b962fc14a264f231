"""Specific plans: changed facts, edits, merged runs, matches that are not believed."""

from itertools import pairwise

import pytest

from kvboost.policy import ReusePolicy
from kvboost.runtime.plan.diff import token_diff
from kvboost.runtime.plan.plan import Plan, ReuseSpan
from kvboost.runtime.plan.planner import LONGEST_SENTENCE_TOKENS, build_plan
from kvboost.types import Donor, Match, Span, Tier
from tests.boosting import segmenter, tokenizer

ALL = frozenset(Tier)
BEFORE, AFTER = "The water was cold.", " They all went home."


def ids(text):
    return tuple(tokenizer()(text, add_special_tokens=False).input_ids)


def donor(tokens, start=0, number=1, exact=True, chain=(b"a", b"b")):
    return Donor(number, tuple(tokens), start, *chain, exact)


def similar(old, new, min_span=2, threshold=0.85, similarity=0.9):
    """Return the texts reused when a chunk ``old`` is nominated for ``new``."""
    tokens, lent = ids(new), ids(old)
    prompt = tokens + ids(" zzz.")  # so that the last token, always computed, is not one of those looked at
    match = Match(Span(0, len(tokens)), donor(lent), Span(0, len(lent)), Tier.SIMILAR, similarity)
    policy = ReusePolicy(min_span=min_span, threshold=threshold)
    plan = build_plan(prompt, [match], segmenter().segment(prompt).sentences, policy, ALL, tokenizer().decode)
    return [tokenizer().decode(prompt[p.target.start : p.target.end]) for p in plan.reuse]


FACTS = {
    "number": ("It was 5 in the garden.", "It was 7 in the garden."),
    "digit inside a number": ("It was 1945 in the garden.", "It was 1975 in the garden."),
    "number word": ("It was seven in the garden.", "It was eight in the garden."),
    "sign": ("It was -5 in the garden.", "It was 5 in the garden."),
    "decimal point": ("It was 3.14 in the garden.", "It was 31.4 in the garden."),
    "percent": ("It was 5 in the garden.", "It was 5% in the garden."),
    "currency": ("It was $5 in the garden.", "It was 5 in the garden."),
    "negation put in": ("It was nice in the garden.", "It was not nice in the garden."),
    "negation left out": ("It was not nice in the garden.", "It was nice in the garden."),
    "negation by apostrophe": ("It did happen in the garden.", "It didn't happen in the garden."),
    "negation by prefix": ("It was usual in the garden.", "It was unusual in the garden."),
    "name": ("Here Alice came in the garden.", "Here Bob came in the garden."),
    "part of a name": ("Here Anna came in the garden.", "Here Anne came in the garden."),
    "character of three byte tokens, last byte": (
        "价格是一元并且很多人都来到了这里。",
        "价格是三元并且很多人都来到了这里。",
    ),
    "cyrillic negation, second byte": ("Он сказал да в саду.", "Он сказал не в саду."),
    "date": ("It was in March that they came.", "It was in April that they came."),
}


@pytest.mark.parametrize("kind", FACTS)
def test_a_changed_fact_takes_out_its_whole_sentence_and_no_other(kind):
    old, new = (f"{BEFORE} {sentence}{AFTER}" for sentence in FACTS[kind])
    assert [text.strip() for text in similar(old, new)] == [BEFORE.strip(), AFTER.strip()]
    assert [text.strip() for text in similar(new, old)] == [BEFORE.strip(), AFTER.strip()]


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("It was big in the garden.", "It was large in the garden.", ["It was", " in the garden."]),
        ("It was in the garden.", "It was still in the garden.", ["It was", " in the garden."]),
        ("It was still in the garden.", "It was in the garden.", ["It was", " in the garden."]),
    ],
    ids=["replaced", "inserted", "deleted"],
)
def test_other_words_leave_the_rest_of_the_sentence(old, new, kept):
    found = similar(f"{BEFORE} {old}{AFTER}", f"{BEFORE} {new}{AFTER}")
    assert "".join(found) == f"{BEFORE} {kept[0]}{kept[1]}{AFTER}"
    assert len(found) == 2


REPEATED = {
    "digit put in": ("It was 5 in the garden.", "It was 55 in the garden."),
    "digit put in before others": ("It was 142 in the garden.", "It was 1142 in the garden."),
    "digit left out": ("It was 55 in the garden.", "It was 5 in the garden."),
    "digit put in at the start": ("5 were in the garden.", "55 were in the garden."),
    "digit left out at the start": ("55 were in the garden.", "5 were in the garden."),
    "name put in": ("Here Bob came in the garden.", "Here Bob Bob came in the garden."),
}


@pytest.mark.parametrize("kind", REPEATED)
@pytest.mark.parametrize("before", ["", BEFORE + " "])
def test_a_fact_that_repeats_the_end_of_the_prefix_tier_takes_out_its_sentence(kind, before):
    lent, tokens = (ids(f"{before}{sentence}{AFTER}") for sentence in REPEATED[kind])
    head = ids("Everybody was there. ")
    prompt = head + tokens + ids(" zzz.")
    same = next(i for i, (a, b) in enumerate(zip(lent, tokens, strict=False)) if a != b)
    chunk = Span(len(head), len(head + tokens))
    rest = Span(chunk.start + same, chunk.end)
    nominee = donor(lent, start=len(head))
    matches = [
        Match(Span(0, len(head)), donor(head, number=2), Span(0, len(head)), Tier.PREFIX),
        Match(Span(chunk.start, rest.start), nominee, Span(0, same), Tier.PREFIX),
        Match(rest, nominee, Span(0, len(lent)), Tier.SIMILAR, 0.95),
    ]
    sentences = segmenter().segment(prompt).sentences
    chunks = [Span(0, len(head)), chunk, Span(chunk.end, len(prompt))]
    policy = ReusePolicy(min_span=2)
    plan = build_plan(prompt, matches, sentences, policy, ALL, tokenizer().decode, chunks)
    reused = [tokenizer().decode(prompt[p.target.start : p.target.end]) for p in plan.reuse if p.tier is Tier.SIMILAR]
    assert "".join(reused).strip() == AFTER.strip()


def test_what_the_prefix_tier_took_is_no_change():
    old, new = (ids(f"Here Bob saw {n} and was {size} in the garden.") for n, size in ((5, "big"), (5, "large")))
    same = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
    prompt = (*new, 7)
    matches = [
        Match(Span(0, same), donor(old), Span(0, same), Tier.PREFIX),
        Match(Span(same, len(new)), donor(old), Span(0, len(old)), Tier.SIMILAR, 0.95),
    ]
    chunks = [Span(0, len(new)), Span(len(new), len(prompt))]
    plan = build_plan(prompt, matches, chunks, ReusePolicy(min_span=2), ALL, tokenizer().decode, chunks)
    assert [p.tier for p in plan.reuse] == [Tier.PREFIX, Tier.SIMILAR]
    assert tokenizer().decode(prompt[plan.reuse[1].target.start : plan.reuse[1].target.end]) == " in the garden."


def test_a_fact_left_out_between_two_sentences_takes_out_both():
    words = [" water", " house", " green", " tree", " not"]
    found = token_diff(
        (0, 1, 4, 2, 3), (0, 1, 2, 3), [Span(0, 2), Span(2, 4)], 1, lambda ids: "".join(words[i] for i in ids)
    )
    assert found.blocks == ()
    assert set(found.changed) == {Span(0, 2), Span(2, 4)}


def test_equal_texts_are_lent_whole():
    assert similar(BEFORE + AFTER, BEFORE + AFTER) == [BEFORE + AFTER]


def test_nothing_in_common_lends_nothing():
    assert similar("green house", "water picture table") == []


def test_blocks_shorter_than_min_span_are_computed():
    # Equal are the first three tokens and the last six.
    tokens, lent = tuple(range(20)), (*range(3), *range(90, 101), *range(14, 20))
    match = Match(Span(0, 20), donor(lent), Span(0, 20), Tier.SIMILAR, 0.9)
    for min_span, kept in [(3, [(0, 3), (14, 20)]), (4, [(14, 20)]), (7, [])]:
        policy = ReusePolicy(min_span=min_span)
        plan = build_plan((*tokens, 99), [match], [Span(0, 20), Span(20, 21)], policy, ALL, lambda ids: " house")
        assert [(p.target.start, p.target.end) for p in plan.reuse] == kept


def test_the_nominee_that_lends_most_is_taken():
    tokens = ids(BEFORE + AFTER)
    prompt = tokens + ids(" zzz.")
    worse = Match(Span(0, len(tokens)), donor(ids(BEFORE), number=1), Span(0, 4), Tier.SIMILAR, 0.95)
    better = Match(Span(0, len(tokens)), donor(tokens, number=2), Span(0, len(tokens)), Tier.SIMILAR, 0.9)
    plan = build_plan(
        prompt, [worse, better], segmenter().segment(prompt).sentences, ReusePolicy(), ALL, tokenizer().decode
    )
    assert plan.chunk_ids() == (2,)


def long_sentence(first, words=60):
    return "The " + first + " " + " ".join(["water and house"] * (words // 3)) + " together."


@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.SIMILAR])
@pytest.mark.parametrize("nominated", [True, False])
def test_a_changed_fact_takes_out_its_sentence_in_the_next_chunk_too(tier, nominated):
    old, new = ids(long_sentence("five")), ids(long_sentence("nine"))
    tail = ids(" They all went home together.")
    prompt = new + tail + (7,)
    cut = 30 + len(new) - len(old)
    second = donor(old[30:] + tail, start=30, number=2, chain=(b"b", b"c"))
    matches = [Match(Span(cut, len(new + tail)), second, Span(0, len(second.token_ids)), tier)]
    if nominated:
        matches.insert(0, Match(Span(0, cut), donor(old[:30]), Span(0, 30), Tier.SIMILAR, 0.95))
    ends = [0, len(new), len(new + tail), len(prompt)]
    sentences = [Span(a, b) for a, b in pairwise(ends)]
    plan = build_plan(prompt, matches, sentences, ReusePolicy(min_span=2), ALL, tokenizer().decode)
    assert [p.target for p in plan.reuse] == [Span(len(new), len(new) + len(tail))]


def test_a_sentence_in_two_chunks_with_other_words_changed_is_lent_from_both():
    old, new = ids(long_sentence("big")), ids(long_sentence("large"))
    prompt = (*new, 7)
    cut = 30 + len(new) - len(old)
    matches = [
        Match(Span(0, cut), donor(old[:30]), Span(0, 30), Tier.SIMILAR, 0.95),
        Match(Span(cut, len(new)), donor(old[30:], 30, 2), Span(0, len(old) - 30), Tier.EXACT),
    ]
    sentences = [Span(0, len(new)), Span(len(new), len(prompt))]
    plan = build_plan(prompt, matches, sentences, ReusePolicy(min_span=2), ALL, tokenizer().decode)
    assert sum(len(p.target) for p in plan.reuse) > len(new) - 10


def test_a_text_without_sentence_ends_is_not_lost_to_one_missing_chunk():
    tokens = tuple(range(3, 3 + LONGEST_SENTENCE_TOKENS + 50))
    match = Match(Span(100, len(tokens)), donor(tokens[100:], 100), Span(0, len(tokens) - 100), Tier.EXACT)
    plan = build_plan(tokens, [match], [Span(0, len(tokens))], ReusePolicy(), ALL, tokenizer().decode)
    assert plan.reuse[0].target == Span(100, len(tokens) - 1)


def test_prefix_tokens_stay_although_their_sentence_goes_on_with_something_new():
    tokens = tuple(range(3, 43))
    match = Match(Span(0, 20), donor(tokens[:20]), Span(0, 20), Tier.PREFIX)
    plan = build_plan(tokens, [match], [Span(0, 40)], ReusePolicy(), ALL, tokenizer().decode)
    assert plan.reuse[0].target == Span(0, 20)


TOKENS = tuple(range(10, 40))


def hashed(tier, tokens=TOKENS[:20], **changes):
    match = Match(Span(0, 20), donor(tokens, **changes), Span(0, 20), tier)
    return build_plan(TOKENS, [match], [Span(0, 20), Span(20, 30)], ReusePolicy(), ALL, tokenizer().decode)


@pytest.mark.parametrize("tier", [Tier.PREFIX, Tier.EXACT])
@pytest.mark.parametrize("place", [0, 11, 19])
def test_a_hash_match_with_another_token_is_refused_by_name(tier, place):
    tokens = list(TOKENS[:20])
    tokens[place] += 1
    plan = hashed(tier, tokens)
    assert plan.reuse == ()
    assert plan.declined == ("token ids differ from the donor's",)


@pytest.mark.parametrize("change", [{"start": 1}, {"exact": False}], ids=["elsewhere", "approximate"])
def test_a_prefix_donor_that_cannot_be_lossless_is_refused(change):
    plan = hashed(Tier.PREFIX, **change)
    assert plan.reuse == ()
    assert "prefix donor" in plan.declined[0]
    assert hashed(Tier.EXACT, **change).reuse != ()


def test_a_match_beyond_the_prompt_is_cut_or_refused():
    match = Match(Span(20, 50), donor(TOKENS[20:] + (1,) * 20, start=20), Span(0, 30), Tier.EXACT)
    plan = build_plan(TOKENS, [match], [Span(0, 20), Span(20, 30)], ReusePolicy(), ALL, tokenizer().decode)
    assert all(p.target.end < 30 for p in plan.reuse)


def piece(start, end, number=1, at=0, tier=Tier.EXACT, chain=(b"a", b"b")):
    return ReuseSpan(Span(start, end), Donor(number, TOKENS, at, *chain, True), 0, tier)


@pytest.mark.parametrize(
    ("second", "runs"),
    [
        (piece(10, 20, 2, at=110, chain=(b"b", b"c")), [(0, 20)]),
        (piece(10, 20, 2, at=111, chain=(b"b", b"c")), [(0, 10), (10, 20)]),
        (piece(10, 20, 2, at=110, chain=(b"x", b"c")), [(0, 10), (10, 20)]),
        (piece(11, 20, 2, at=111, chain=(b"b", b"c")), [(0, 10), (11, 20)]),
        (piece(10, 20, 2, at=110, chain=(b"b", b"c"), tier=Tier.SIMILAR), [(0, 20)]),
        (piece(10, 20, 2, at=110, chain=(b"b", b"c"), tier=Tier.PREFIX), [(0, 10), (10, 20)]),
    ],
    ids=["continues", "other shift", "other sequence", "gap", "other approximate tier", "lossless"],
)
def test_neighbours_of_one_donor_sequence_and_shift_are_one_run(second, runs):
    plan = Plan(30, (piece(0, 10, at=100), second))
    assert [(r.span.start, r.span.end) for r in plan.runs] == runs


def test_an_empty_plan_computes_everything():
    plan = Plan(5, ())
    assert (plan.compute, plan.tail_start, plan.lossless, plan.approximate_from) == ((Span(0, 5),), 0, True, None)


def test_a_model_with_the_prefix_tier_alone_gets_no_gaps_to_fill():
    matches = [
        Match(Span(a, b), donor(TOKENS[a:b], a, number), Span(0, b - a), Tier.PREFIX)
        for number, (a, b) in enumerate([(0, 8), (8, 12), (16, 24)])
    ]
    sentences = [Span(0, 30)]
    for tiers, end in [(ALL, 24), ({Tier.PREFIX}, 12)]:
        plan = build_plan(TOKENS, matches, sentences, ReusePolicy(), tiers, tokenizer().decode)
        assert plan.tail_start == end
