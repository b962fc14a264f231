"""What every chunk cache must do, in this process or behind gRPC.

A suite for one implementation subclasses :class:`ChunkCacheContract` and provides ``make_cache``, a fixture that
is called with ``max_bytes``, ``max_variants`` and ``embedder`` (each with a default) and returns an open cache.
``settle(cache)`` waits until what was put is found by similarity too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kvboost.errors import (
    CacheUnavailableError,
    InputError,
    LayoutMismatchError,
    NonFiniteError,
    TensorError,
    UnknownNamespaceError,
)
from kvboost.protocols import ChunkCache
from kvboost.types import KVLayout, Match, NewChunk, PutReceipt, PutRequest, Span, Tier
from tests.contracts.chunks import LAYOUT, ask, held_bytes, join, namespace, offer, payload_of, shape, spans, words
from tests.fakes import NgramEmbedder

NS = namespace()
KEY = NS.key
MakeCache = Callable[..., ChunkCache]
A, B, C, D = words("a"), words("b"), words("c"), words("d")
CHUNK_BYTES = 16 * LAYOUT.token_bytes
HELD_BYTES = held_bytes(16)


def settle(cache: ChunkCache, vectors: int, key: str = KEY) -> None:
    """Wait until ``vectors`` chunks of a namespace can be found by similarity."""
    for _ in range(400):
        if next((n.vectors for n in cache.stats().namespaces if n.namespace == key), 0) >= vectors:
            return
        time.sleep(0.025)
    pytest.fail(f"{vectors} vectors were expected and did not come")


def one(cache: ChunkCache, chunk_id: int, key: str = KEY) -> bytes:
    (kv,) = list(cache.fetch(key, [chunk_id]))
    return bytes(kv.verified())


class ChunkCacheContract:
    """The suite; see the module's docstring for what a subclass provides."""

    @pytest.fixture
    def make_cache(self) -> MakeCache:
        raise NotImplementedError

    @pytest.fixture
    def cache(self, make_cache: MakeCache) -> ChunkCache:
        cache = make_cache(max_bytes=1 << 20, embedder=NgramEmbedder())
        cache.open(NS)
        return cache

    # open, drop, close

    def test_open_tells_the_settings_and_can_be_repeated(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=12345, max_variants=3, embedder=NgramEmbedder())
        info = cache.open(NS)
        assert (info.max_bytes, info.max_variants, info.embedder) == (12345, 3, "ngram@1")
        assert info.version
        cache.put(offer(KEY, []))
        assert cache.open(NS) == info

    def test_opening_again_keeps_the_chunks(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A]))
        cache.open(NS)
        assert shape(cache.match(ask(KEY, [A])).matches) == [("prefix", 0, 16)]

    def test_unknown_namespace_is_named(self, cache: ChunkCache) -> None:
        for call in (
            lambda: cache.match(ask("nowhere", [A])),
            lambda: list(cache.fetch("nowhere", [1])),
            lambda: cache.put(offer("nowhere", [A])),
            lambda: cache.evict("nowhere", [1]),
        ):
            with pytest.raises(UnknownNamespaceError, match="nowhere"):
                call()

    def test_drop_forgets_the_namespace_and_its_bytes(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        assert cache.drop(KEY) == 2
        assert cache.stats().stored_bytes == 0
        assert cache.drop(KEY) == 0
        with pytest.raises(UnknownNamespaceError):
            cache.match(ask(KEY, [A]))
        cache.open(NS)
        assert cache.match(ask(KEY, [A])).matches == ()

    def test_layout_is_part_of_the_namespace(self, cache: ChunkCache) -> None:
        other = namespace(layout=KVLayout(2, 1, 4, 4, "float32"))
        assert other.key != KEY
        cache.open(other)
        cache.put(offer(KEY, [A]))
        assert cache.match(ask(other.key, [A])).matches == ()

    def test_the_same_key_with_another_layout_is_refused(
        self, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        liar = namespace(layout=KVLayout(2, 2, 4, 4, "float16"))
        monkeypatch.setattr(type(liar), "key", property(lambda _: KEY))
        with pytest.raises(LayoutMismatchError, match="layout"):
            cache.open(liar)

    def test_after_close_nothing_works(self, cache: ChunkCache) -> None:
        cache.close()
        cache.close()
        for call in (
            lambda: cache.open(NS),
            lambda: cache.match(ask(KEY, [A])),
            lambda: list(cache.fetch(KEY, [1])),
            lambda: cache.put(offer(KEY, [A])),
            lambda: cache.evict(KEY, [1]),
            lambda: cache.drop(KEY),
            cache.stats,
        ):
            with pytest.raises(CacheUnavailableError):
                call()

    # prefix tier

    def test_prefix_reaches_into_the_first_chunk_that_differs(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B, C]))
        edited = (*B[:5], 7, *B[6:])
        matches = cache.match(ask(KEY, [A, edited, C])).matches
        assert shape(matches)[:2] == [("prefix", 0, 16), ("prefix", 16, 21)]
        assert matches[1].donor_span == Span(0, 5)
        assert matches[-1].tier == Tier.EXACT
        assert (matches[-1].target, matches[-1].donor.token_ids) == (Span(32, 48), C)

    def test_prefix_follows_donors_cut_elsewhere(self, cache: ChunkCache) -> None:
        whole = join([A, B, C])
        cache.put(offer(KEY, [whole[:10], whole[10:30], whole[30:]]))
        matches = cache.match(ask(KEY, [A, B, C, D])).matches
        assert shape(matches) == [("prefix", 0, 10), ("prefix", 10, 30), ("prefix", 30, 48)]

    def test_a_longer_prompt_finds_the_shorter_one_and_the_other_way(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        assert shape(cache.match(ask(KEY, [(*A, *B[:4])])).matches) == [("prefix", 0, 16), ("prefix", 16, 20)]
        assert shape(cache.match(ask(KEY, [A, B, C])).matches) == [("prefix", 0, 16), ("prefix", 16, 32)]

    def test_matching_goes_on_behind_a_gap(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B, C], only=[0, 2]))
        assert shape(cache.match(ask(KEY, [A, B, C])).matches) == [("prefix", 0, 16), ("prefix", 32, 48)]
        assert shape(cache.match(ask(KEY, [A, D, C])).matches) == [("prefix", 0, 16), ("exact", 32, 48)]

    def test_an_approximate_chunk_never_serves_the_prefix_tier(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B], exact=[True, False]))
        matches = cache.match(ask(KEY, [A, B])).matches
        assert shape(matches) == [("prefix", 0, 16), ("exact", 16, 32)]
        assert [m.donor.exact for m in matches] == [True, False]

    def test_a_chunk_stored_behind_a_history_is_no_prefix_alone(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        assert shape(cache.match(ask(KEY, [B])).matches) == [("exact", 0, 16)]

    # exact tier

    def test_reordered_chunks_are_found_where_they_stand(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B, C]))
        matches = cache.match(ask(KEY, [A, C, B])).matches
        assert shape(matches) == [("prefix", 0, 16), ("exact", 16, 32), ("exact", 32, 48)]
        assert [m.donor.start for m in matches] == [0, 32, 16]
        assert [m.donor_span for m in matches] == [Span(0, 16)] * 3

    def test_the_rest_of_a_partly_matched_chunk_comes_from_its_twin(self, cache: ChunkCache) -> None:
        other = (*B[:3], *D[3:])
        cache.put(offer(KEY, [A, other]))
        cache.put(offer(KEY, [C, B]))
        matches = cache.match(ask(KEY, [A, B])).matches
        assert shape(matches) == [("prefix", 0, 16), ("prefix", 16, 19), ("exact", 19, 32)]
        assert (matches[2].donor.token_ids, matches[2].donor_span) == (B, Span(3, 16))

    def test_the_donor_that_continues_the_run_wins(self, cache: ChunkCache) -> None:
        x, y = words("x"), words("y")
        cache.put(offer(KEY, [x, A, B]))
        cache.put(offer(KEY, [y, A, C]))
        cache.put(offer(KEY, [y, B, D]))
        for chunks in ([D, A, B], [C, A, B]):
            first, second = cache.match(ask(KEY, [words("z"), *chunks])).matches[-2:]
            assert second.donor.parent_hash == first.donor.prefix_hash

    def test_among_others_the_donor_nearest_to_the_place_wins(self, cache: ChunkCache) -> None:
        x, y, z = words("x"), words("y"), words("z")
        cache.put(offer(KEY, [x, A]))
        cache.put(offer(KEY, [y, x, z, A]))
        for before, wanted in (([words("p")], 16), ([words("p"), words("q"), words("r")], 48)):
            (match,) = cache.match(ask(KEY, [*before, A])).matches
            assert match.donor.start == wanted

    def test_every_exact_match_holds_the_prompts_own_tokens(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B, C, D]))
        prompt = [D, A, words("new"), (*C[:8], 3), B]
        query = ask(KEY, prompt, threshold=0.2)
        for m in cache.match(query).matches:
            if m.tier != Tier.SIMILAR:
                ours = query.token_ids[m.target.start : m.target.end]
                assert m.donor.token_ids[m.donor_span.start : m.donor_span.end] == ours

    # similar tier

    def test_an_edited_chunk_is_nominated_at_the_threshold(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B, C]))
        settle(cache, 3)
        edited = (*B[:7], 5, *B[8:])
        result = cache.match(ask(KEY, [D, edited], threshold=0.7))
        (match,) = result.matches
        assert (match.tier, match.target, match.donor.token_ids) == (Tier.SIMILAR, Span(16, 32), B)
        assert match.donor_span == Span(0, 16)
        assert 0.7 <= match.similarity < 1.0
        assert result.embedded_chunks == 2
        above = (1.0 + match.similarity) / 2
        assert cache.match(ask(KEY, [D, edited], threshold=above)).matches == ()

    def test_the_rest_of_the_diverging_chunk_is_nominated(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        settle(cache, 2)
        edited = (*B[:7], 5, *B[8:])
        matches = cache.match(ask(KEY, [A, edited], threshold=0.7)).matches
        assert shape(matches) == [("prefix", 0, 16), ("prefix", 16, 23), ("similar", 23, 32)]

    def test_threshold_one_finds_identical_texts_only(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        settle(cache, 2)
        query = ask(KEY, [C, B[:15]], threshold=1.0)
        assert cache.match(query).matches == ()
        # The same text under other tokens: an embedding cannot tell them apart.
        same_text = query.chunks[1].__class__(Span(0, 15), offer(KEY, [A, B]).chunks[1].text)
        (match,) = cache.match(query.__class__(KEY, tuple(range(15)), (same_text,), 1.0)).matches
        assert match.similarity == pytest.approx(1.0, abs=1e-6)
        assert match.similarity <= 1.0
        assert match.donor.token_ids == B

    def test_nominees_come_best_first_and_not_too_many(self, cache: ChunkCache) -> None:
        variants = [(*A[:i], 9, *A[i + 1 :]) for i in (2, 5, 9)] + [(*A[:4], *D[:8], *A[12:])]
        cache.put(offer(KEY, variants))
        settle(cache, 4)
        for limit in (1, 2, 3):
            matches = cache.match(ask(KEY, [C, A], threshold=0.3, max_nominees=limit)).matches
            assert len(matches) == limit
            assert [m.similarity for m in matches] == sorted((m.similarity for m in matches), reverse=True)
            assert len({m.donor.token_ids for m in matches}) == limit

    def test_hash_hits_are_not_embedded(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        settle(cache, 2)
        assert cache.match(ask(KEY, [A, B], threshold=0.5)).embedded_chunks == 0
        assert cache.match(ask(KEY, [B, A, C], threshold=0.5)).embedded_chunks == 1
        assert cache.match(ask(KEY, [C])).embedded_chunks == 0

    def test_chunks_without_tokens_in_common_need_no_embedding(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        settle(cache, 2)
        query = ask(KEY, [C, (*B[:9], 5, *B[10:])], threshold=0.7)
        result = cache.match(replace(query, min_shared_tokens=8))
        assert (result.embedded_chunks, result.spared_chunks) == (1, 1)
        assert result.matches == cache.match(query).matches
        assert shape(result.matches) == [("similar", 16, 32)]

    def test_an_evicted_chunk_is_not_nominated(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        settle(cache, 2)
        edited = (*B[:7], 5, *B[8:])
        (match,) = cache.match(ask(KEY, [C, edited], threshold=0.7)).matches
        assert cache.evict(KEY, [match.donor.chunk_id]) == 1
        assert cache.match(ask(KEY, [C, edited], threshold=0.7)).matches == ()
        assert cache.stats().namespaces[0].vectors == 1

    # put

    def test_receipt_counts(self, cache: ChunkCache) -> None:
        assert cache.put(offer(KEY, [A, B, C])) == PutReceipt(stored=3)
        assert cache.put(offer(KEY, [A, B, D])) == PutReceipt(stored=1, duplicate=2)
        assert cache.put(offer(KEY, [A, B], exact=False)) == PutReceipt(duplicate=2)

    def test_exact_replaces_approximate(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B], exact=[True, False]))
        (_, old) = cache.match(ask(KEY, [A, B])).matches
        assert cache.put(offer(KEY, [A, B])) == PutReceipt(stored=1, duplicate=1)
        (_, new) = cache.match(ask(KEY, [A, B])).matches
        assert (new.tier, new.donor.exact) == (Tier.PREFIX, True)
        assert new.donor.chunk_id != old.donor.chunk_id
        assert list(cache.fetch(KEY, [old.donor.chunk_id])) == []
        assert cache.stats().stored_bytes == 2 * CHUNK_BYTES

    def test_histories_of_one_content_are_bounded(self, cache: ChunkCache) -> None:
        receipts = [cache.put(offer(KEY, [words(f"h{i}"), A], only=[1])) for i in range(5)]
        assert [r.stored for r in receipts] == [1, 1, 0, 0, 0]
        assert sum(r.over_variants for r in receipts) == 3

    def test_an_approximate_chunk_is_kept_only_while_its_content_is_new(self, cache: ChunkCache) -> None:
        assert cache.put(offer(KEY, [B, A], exact=False, only=[1])) == PutReceipt(stored=1)
        assert cache.put(offer(KEY, [C, A], exact=False, only=[1])) == PutReceipt(over_variants=1)
        assert cache.put(offer(KEY, [C, A], only=[1])) == PutReceipt(stored=1)

    def test_histories_are_kept_for_a_reader_to_whom_they_alone_count(self, cache: ChunkCache) -> None:
        """The third user's chat over a shared document, and the fortieth's."""
        for user in range(40):
            chat = [words(f"{user:x}h"), A, B]
            assert cache.put(replace(offer(KEY, chat), prefix_only=True)) == PutReceipt(stored=3)
            assert shape(cache.match(ask(KEY, chat)).matches)[-1] == ("prefix", 32, 48)

    def test_histories_kept_for_such_a_reader_are_bounded_and_the_newest_stay(self, cache: ChunkCache) -> None:
        for i in range(80):
            assert cache.put(replace(offer(KEY, [words(f"{i:x}h"), A], only=[1]), prefix_only=True)).stored == 1
        assert cache.stats().namespaces[0].chunks == 64
        assert len(cache.match(ask(KEY, [words("4fh"), A])).matches) == 1
        assert cache.put(offer(KEY, [words("x"), A], only=[1])) == PutReceipt(over_variants=1)

    @pytest.mark.parametrize("bad", [b"\x00\x7c", b"\x00\xfc", b"\x01\x7e"])
    def test_values_that_are_not_finite_are_refused_and_the_chunks_before_them_kept(
        self, cache: ChunkCache, bad: bytes
    ) -> None:
        good = offer(KEY, [A, B, C])
        payload = bytes(good.chunks[1].payload)
        spoilt = replace(good.chunks[1], payload=payload[:-2] + bad)
        with pytest.raises(NonFiniteError, match=rf"chunks\[1\].*{KEY}"):
            cache.put(PutRequest(KEY, good.token_ids, (good.chunks[0], spoilt, good.chunks[2])))
        assert shape(cache.match(ask(KEY, [A, B, C])).matches) == [("prefix", 0, 16)]
        (stats,) = [each for each in cache.stats().namespaces if each.namespace == KEY]
        assert (stats.chunks, stats.non_finite_chunks) == (1, 1)
        assert cache.put(good) == PutReceipt(stored=2, duplicate=1)

    def test_a_payload_of_the_wrong_size_is_refused_whole(self, cache: ChunkCache) -> None:
        good = offer(KEY, [A, B])
        short = NewChunk(Span(16, 32), "b", True, good.chunks[1].payload[:-2])
        with pytest.raises(TensorError, match="payload"):
            cache.put(PutRequest(KEY, good.token_ids, (good.chunks[0], short)))
        assert cache.stats().stored_bytes == 0

    def test_a_span_outside_the_tokens_is_refused(self, cache: ChunkCache) -> None:
        with pytest.raises(InputError, match="span"):
            cache.put(PutRequest(KEY, A[:8], offer(KEY, [A]).chunks))

    def test_token_ids_out_of_range_are_refused(self, cache: ChunkCache) -> None:
        for bad in (-100, 2**31):
            tokens = (*A[:15], bad)
            with pytest.raises(InputError, match="token_ids"):
                cache.put(PutRequest(KEY, tokens, offer(KEY, [A]).chunks))

    def test_a_chunk_larger_than_the_budget_pushes_nothing_out(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=2 * HELD_BYTES)
        cache.open(NS)
        cache.put(offer(KEY, [A, B]))
        assert cache.put(offer(KEY, [words("big", 64)])) == PutReceipt(too_large=1)
        assert shape(cache.match(ask(KEY, [A, B])).matches) == [("prefix", 0, 16), ("prefix", 16, 32)]

    # fetch, evict, budget

    def test_fetch_gives_back_the_bytes_in_the_order_asked(self, cache: ChunkCache) -> None:
        chunks = [A, B, C]
        cache.put(offer(KEY, chunks))
        matches = cache.match(ask(KEY, chunks)).matches
        ids = [m.donor.chunk_id for m in matches][::-1]
        got = list(cache.fetch(KEY, [ids[0], 12345, *ids[1:]]))
        assert [kv.chunk_id for kv in got] == ids
        wanted = [payload_of(c, s.start) for c, s in zip(chunks, spans(chunks), strict=True)][::-1]
        assert [bytes(kv.verified()) for kv in got] == wanted
        assert all(memoryview(kv.payload).readonly for kv in got)
        assert list(cache.fetch(KEY, [])) == []

    def test_what_is_stored_is_a_copy(self, cache: ChunkCache) -> None:
        buffer = bytearray(payload_of(A, 0))
        cache.put(PutRequest(KEY, A, (NewChunk(Span(0, 16), "a", True, buffer),)))
        buffer[:] = bytes(len(buffer))
        (match,) = cache.match(ask(KEY, [A])).matches
        assert one(cache, match.donor.chunk_id) == payload_of(A, 0)

    def test_an_eviction_during_a_fetch_harms_nobody(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        ids = [m.donor.chunk_id for m in cache.match(ask(KEY, [A, B])).matches]
        stream = cache.fetch(KEY, ids)
        first = next(stream)
        cache.evict(KEY, ids)
        assert bytes(first.verified()) == payload_of(A, 0)
        for kv in stream:
            assert bytes(kv.verified()) == payload_of(B, 16)
        assert list(cache.fetch(KEY, ids)) == []

    def test_evict_counts_what_was_there(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B]))
        ids = [m.donor.chunk_id for m in cache.match(ask(KEY, [A, B])).matches]
        assert cache.evict(KEY, [ids[0], 999]) == 1
        assert cache.evict(KEY, [ids[0]]) == 0
        assert shape(cache.match(ask(KEY, [A, B])).matches) == [("prefix", 16, 32)]
        assert cache.stats().stored_bytes == CHUNK_BYTES

    def test_the_budget_holds_over_all_namespaces(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=10 * HELD_BYTES)
        other = namespace(tenant="other")
        cache.open(NS)
        cache.open(other)
        for i in range(20):
            cache.put(offer((KEY, other.key)[i % 2], [words(f"n{i}")]))
            stats = cache.stats()
            assert stats.stored_bytes == sum(n.stored_bytes for n in stats.namespaces)
            assert stats.index_bytes == sum(n.index_bytes for n in stats.namespaces)
            assert stats.stored_bytes + stats.index_bytes <= 10 * HELD_BYTES
        assert sum(n.evicted_chunks for n in stats.namespaces) == 10

    def test_what_lies_beside_the_bytes_is_told_and_counts(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=3 * HELD_BYTES)
        cache.open(NS)
        assert cache.put(offer(KEY, [A, B])).stored == 2
        stats = cache.stats()
        assert stats.index_bytes == stats.namespaces[0].index_bytes == 2 * (HELD_BYTES - CHUNK_BYTES)
        cache.put(offer(KEY, [C, D]))
        assert cache.stats().namespaces[0].chunks == 3

    @pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
    def test_a_full_cache_keeps_the_whole_of_a_sequence_just_put(self, make_cache: MakeCache, share: float) -> None:
        cache = make_cache(max_bytes=50 * HELD_BYTES)
        cache.open(NS)
        for i in range(60):
            chunk = words(f"{i:x}f")
            cache.put(offer(KEY, [chunk]))
            for m in cache.match(ask(KEY, [chunk])).matches:
                one(cache, m.donor.chunk_id)
        chat = [words(f"{i:x}c") for i in range(int(50 * share))]
        assert cache.put(offer(KEY, chat)).stored == len(chat)
        assert shape(cache.match(ask(KEY, chat)).matches)[-1] == ("prefix", 16 * len(chat) - 16, 16 * len(chat))
        assert len(cache.match(ask(KEY, chat)).matches) == len(chat)

    def test_a_sequence_larger_than_the_budget_keeps_its_head(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=10 * HELD_BYTES)
        cache.open(NS)
        chat = [words(f"{i:x}c") for i in range(14)]
        for _ in range(2):
            cache.put(offer(KEY, chat))
            assert len(cache.match(ask(KEY, chat)).matches) == 10
            assert shape(cache.match(ask(KEY, chat)).matches)[-1] == ("prefix", 144, 160)

    def test_the_next_turn_never_pushes_out_the_turns_before_it(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=10 * HELD_BYTES)
        cache.open(NS)
        chat = [words(f"{i:x}c") for i in range(10)]
        for turn in (4, 7, 10):
            cache.put(offer(KEY, chat[:turn], only=range(turn - 3, turn) if turn > 4 else None))
        assert len(cache.match(ask(KEY, chat)).matches) == 10

    def test_who_holds_most_pays_and_who_holds_little_keeps_it(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=20 * HELD_BYTES)
        large, small, new = (namespace(tenant=name) for name in ("large", "small", "new"))
        for each in (large, small, new):
            cache.open(each)
        for i in range(3):
            cache.put(offer(small.key, [words(f"{i:x}s")]))
        for i in range(40):
            cache.put(offer(large.key, [words(f"{i:x}l")]))
            cache.match(ask(small.key, [A]))
        held = {n.namespace: n.chunks for n in cache.stats().namespaces}
        assert (held[small.key], held[large.key]) == (3, 17)
        for i in range(40):
            cache.put(offer(new.key, [words(f"{i:x}n")]))
            for each in (small, large):
                cache.match(ask(each.key, [A]))
        held = {n.namespace: n.chunks for n in cache.stats().namespaces}
        assert held[small.key] == 3
        assert abs(held[large.key] - held[new.key]) <= 1
        assert sum(held.values()) == 20

    def test_a_namespace_that_nobody_uses_pays_first(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=20 * HELD_BYTES)
        idle, busy = namespace(tenant="idle"), namespace(tenant="busy")
        for each in (idle, busy):
            cache.open(each)
        for i in range(5):
            cache.put(offer(idle.key, [words(f"{i:x}i")]))
        for i in range(45):
            cache.put(offer(busy.key, [words(f"{i:x}b")]))
        held = {n.namespace: n.chunks for n in cache.stats().namespaces}
        assert (held[idle.key], held[busy.key]) == (0, 20)

    def test_looking_up_pins_nothing(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=4 * HELD_BYTES)
        cache.open(NS)
        for i in range(12):
            assert cache.put(offer(KEY, [words(f"n{i}")])).stored == 1
            assert len(cache.match(ask(KEY, [words(f"n{i}")])).matches) == 1

    # namespaces

    def test_namespaces_never_cross(self, cache: ChunkCache) -> None:
        other = namespace(tenant="other")
        cache.open(other)
        cache.put(offer(KEY, [A, B]))
        settle(cache, 2)
        edited = (*B[:7], 5, *B[8:])
        assert cache.match(ask(other.key, [A, edited], threshold=0.0)).matches == ()
        ids = [m.donor.chunk_id for m in cache.match(ask(KEY, [A, B])).matches]
        assert list(cache.fetch(other.key, ids)) == []
        assert cache.evict(other.key, ids) == 0
        cache.put(offer(other.key, [A]))
        cache.drop(other.key)
        assert len(list(cache.fetch(KEY, ids))) == 2

    def test_a_tenant_named_like_an_adapter_is_another_namespace(self, cache: ChunkCache) -> None:
        as_tenant = namespace(tenant="x")
        as_adapter = type(as_tenant)(model="m", tokenizer="t", rope="r", layout=LAYOUT, adapter="x")
        cache.open(as_tenant)
        cache.open(as_adapter)
        cache.put(offer(as_tenant.key, [A]))
        assert cache.match(ask(as_adapter.key, [A])).matches == ()

    # stats

    def test_stats_count_tokens_by_tier(self, cache: ChunkCache) -> None:
        cache.put(offer(KEY, [A, B, C]))
        settle(cache, 3)
        edited = (*B[:7], 5, *B[8:])
        cache.match(ask(KEY, [A, C, edited, D], threshold=0.7))
        (stats,) = [each for each in cache.stats().namespaces if each.namespace == KEY]
        assert (stats.namespace, stats.model, stats.tenant) == (KEY, "m", "")
        assert (stats.queries, stats.query_tokens) == (1, 64)
        assert stats.hit_tokens == {"prefix": 16, "exact": 16, "similar": 16}
        assert (stats.chunks, stats.stored_bytes, stats.vectors) == (3, 3 * CHUNK_BYTES, 3)
        assert cache.stats().uptime_s >= 0.0

    def test_stats_tell_bytes_that_the_prefix_tier_may_lend(self, cache: ChunkCache) -> None:
        def figures() -> tuple[int, int]:
            (stats,) = [each for each in cache.stats().namespaces if each.namespace == KEY]
            return stats.stored_bytes, stats.exact_bytes

        cache.put(offer(KEY, [A, B, C], exact=[True, False, False]))
        assert figures() == (3 * CHUNK_BYTES, CHUNK_BYTES)
        cache.put(offer(KEY, [A, B]))  # now B was computed without reuse, and takes the place of the other
        assert figures() == (3 * CHUNK_BYTES, 2 * CHUNK_BYTES)

    def test_an_empty_query_is_a_miss(self, cache: ChunkCache) -> None:
        assert cache.match(ask(KEY, [])).matches == ()

    # threads

    def test_puts_from_four_threads_beside_matches_and_fetches(self, make_cache: MakeCache) -> None:
        cache = make_cache(max_bytes=40 * HELD_BYTES, embedder=NgramEmbedder())
        cache.open(NS)
        docs = [[words(f"{d:x}{c}") for c in range(4)] for d in range(12)]

        def put(worker: int) -> None:
            for i in range(40):
                cache.put(offer(KEY, docs[(5 * i + worker) % 12]))

        def read(worker: int) -> int:
            found = 0
            for i in range(40):
                doc = docs[(7 * i + worker) % 12]
                query = ask(KEY, [*doc, (*doc[0][:9], 1)], threshold=0.5)
                matches = {m.donor.chunk_id: m for m in cache.match(query).matches}
                for kv in cache.fetch(KEY, list(matches)):
                    donor = matches[kv.chunk_id].donor
                    assert bytes(kv.verified()) == payload_of(donor.token_ids, donor.start)
                    found += 1
            return found

        with ThreadPoolExecutor(7) as pool:
            puts = [pool.submit(put, w) for w in range(4)]
            reads = [pool.submit(read, w) for w in range(3)]
            for future in puts:
                future.result()
            assert sum(future.result() for future in reads) > 0
        stats = cache.stats()
        assert stats.stored_bytes + stats.index_bytes <= 40 * HELD_BYTES
        check_disjoint(cache.match(ask(KEY, [c for doc in docs for c in doc], threshold=0.1)).matches)


def check_disjoint(matches: tuple[Match, ...]) -> None:
    """Hash targets are disjoint, similar targets overlap none of them, and the order is by start."""
    assert [m.target.start for m in matches] == sorted(m.target.start for m in matches)
    taken: set[int] = set()
    for m in (m for m in matches if m.tier != Tier.SIMILAR):
        tokens = set(range(m.target.start, m.target.end))
        assert not tokens & taken
        taken |= tokens
    for m in (m for m in matches if m.tier == Tier.SIMILAR):
        assert not set(range(m.target.start, m.target.end)) & taken
