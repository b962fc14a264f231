"""Matches against a plain model of what was stored: every one true, and the prefix walk as long as it can be."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.index import LocalCache
from kvboost.index.hashes import SequenceHasher
from kvboost.types import Donor, Match, Tier
from tests.contracts.chunk_cache import check_disjoint
from tests.contracts.chunks import Tokens, ask, join, namespace, offer, shape, words
from tests.fakes import NgramEmbedder

NS = namespace()
KEY = NS.key
# Few different tokens and short chunks, so that prefixes, contents and boundaries collide often.
_chunk = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
_prompt = st.lists(_chunk, min_size=1, max_size=6)


class Reference:
    """All (history, tokens) that were put as exact: what a prefix match may say."""

    def __init__(self) -> None:
        self.exact: set[tuple[Tokens, Tokens]] = set()

    def put(self, chunks: list[Tokens], exact: list[bool]) -> None:
        for i, chunk in enumerate(chunks):
            if exact[i]:
                self.exact.add((join(chunks[:i]), chunk))

    def reach(self, tokens: Tokens) -> int:
        """Return how far a prefix walk can get."""
        reached, furthest = {0}, 0
        for at in range(len(tokens) + 1):
            if at not in reached:
                continue
            for history, chunk in self.exact:
                if history == tokens[:at]:
                    n = next((i for i, (a, b) in enumerate(zip(chunk, tokens[at:], strict=False)) if a != b), None)
                    n = min(len(chunk), len(tokens) - at) if n is None else n
                    furthest = max(furthest, at + n)
                    if n == len(chunk):
                        reached.add(at + n)
        return furthest


@settings(max_examples=250, deadline=None)
@given(st.lists(st.tuples(_prompt, st.lists(st.booleans(), min_size=6, max_size=6)), max_size=5), _prompt, _prompt)
def test_matches_are_true_and_the_walk_is_longest(
    puts: list[tuple[list[Tokens], list[bool]]], wanted: list[Tokens], other_cut: list[Tokens]
) -> None:
    cache = LocalCache(1 << 20, max_variants=1000)
    cache.open(NS)
    reference = Reference()
    for chunks, exact in puts:
        cache.put(offer(KEY, chunks, exact[: len(chunks)]))
        reference.put(chunks, exact)
    contents = {c for chunks, _ in puts for c in chunks}
    for prompt in (wanted, other_cut, *(chunks for chunks, _ in puts)):
        tokens = join(prompt)
        matches = cache.match(ask(KEY, prompt)).matches
        check_disjoint(matches)
        for match in matches:
            ours = tokens[match.target.start : match.target.end]
            assert match.donor.token_ids[match.donor_span.start : match.donor_span.end] == ours
            if match.tier == Tier.PREFIX:
                assert match.donor_span.start == 0
                assert match.donor.start == match.target.start
                assert (tokens[: match.target.start], match.donor.token_ids) in reference.exact
        assert _covered_from_start(matches) >= reference.reach(tokens)
        # A chunk with stored content is covered to its last token.
        covered = {t for m in matches for t in range(m.target.start, m.target.end)}
        at = 0
        for chunk in prompt:
            if chunk in contents:
                assert set(range(at, at + len(chunk))) <= covered
            at += len(chunk)


def _covered_from_start(matches: tuple[Match, ...]) -> int:
    end = 0
    for match in matches:
        if match.target.start != end:
            break
        end = match.target.end
    return end


def test_a_longer_way_round_beats_the_longest_first_step() -> None:
    cache = LocalCache(1 << 20)
    cache.open(NS)
    whole = words("a", 40)
    cache.put(offer(KEY, [whole[:10], whole[10:30]]))
    cache.put(offer(KEY, [(*whole[:12], 1)]))
    matches = cache.match(ask(KEY, [whole])).matches
    assert shape(matches) == [("prefix", 0, 10), ("prefix", 10, 30)]


def test_among_many_siblings_the_one_with_the_longest_common_prefix_is_found() -> None:
    cache = LocalCache(1 << 20, max_variants=1000)
    cache.open(NS)
    rng = random.Random(0)
    siblings = [tuple(rng.choices(range(3), k=rng.randint(1, 12))) for _ in range(300)]
    system = words("s")
    for sibling in siblings:
        cache.put(offer(KEY, [system, sibling]))
    for _ in range(100):
        prompt = tuple(rng.choices(range(3), k=12))
        longest = max(
            next((i for i, (a, b) in enumerate(zip(s, prompt, strict=False)) if a != b), min(len(s), 12))
            for s in siblings
        )
        assert _covered_from_start(cache.match(ask(KEY, [system, prompt])).matches) >= 16 + longest


def test_a_sentence_and_its_reversal_are_never_the_same_chunk() -> None:
    cache = LocalCache(1 << 20, NgramEmbedder())
    cache.open(NS)
    dog_bites_man = words("a")
    man_bites_dog = dog_bites_man[::-1]
    cache.put(offer(KEY, [dog_bites_man]))
    cache.flush()
    (match,) = cache.match(ask(KEY, [words("z"), man_bites_dog], threshold=0.6)).matches
    assert (match.tier, match.donor.token_ids) == (Tier.SIMILAR, dog_bites_man)
    assert match.similarity > 0.6
    cache.close()


def test_hash_collisions_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a content hash that takes all chunks for one, tokens still tell them apart."""
    monkeypatch.setattr(SequenceHasher, "content", lambda *_: b"same")
    cache = LocalCache(1 << 20, max_variants=10)
    cache.open(NS)
    cache.put(offer(KEY, [words("a"), words("b")]))
    matches = cache.match(ask(KEY, [words("z"), words("b"), words("c")])).matches
    assert [m.donor.token_ids for m in matches] == [words("b")]


def test_a_nominee_that_continues_its_left_neighbour_goes_first() -> None:
    cache = LocalCache(1 << 20, NgramEmbedder())
    cache.open(NS)
    a, b, c = words("a"), words("b"), words("c")
    cache.put(offer(KEY, [a, b]))
    cache.put(offer(KEY, [c, b]))
    cache.flush()
    edited = (*b[:7], 5, *b[8:])
    for left in (a, c):
        first, second = cache.match(ask(KEY, [words("z"), left, edited], threshold=0.7)).matches
        assert (first.tier, second.tier) == (Tier.EXACT, Tier.SIMILAR)
        assert _continues(first.donor, second.donor)
    cache.close()


def _continues(left: Donor, right: Donor) -> bool:
    return right.parent_hash == left.prefix_hash
