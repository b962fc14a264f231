"""The arena: its blocks, its files, its budget, and what killed servers leave behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvboost.errors import CacheUnavailableError, ConfigError, QuotaError
from kvboost.index import LocalCache
from kvboost.index.arena import HEADER_BYTES, Arena
from kvboost.index.payloads import Bytes
from kvboost.types import ChunkKV, KVLayout, NewChunk, PutRequest, Span
from tests.contracts.chunks import LAYOUT, ask, finite, namespace, offer, words

MakeArena = Callable[..., Arena]
MIB = 1 << 20
WIDE = KVLayout(4, 2, 64, 64, "float32")
"""4 KiB a token."""


@pytest.fixture
def make_arena(tmp_path: Path) -> Iterator[MakeArena]:
    made: list[Arena] = []

    def make(max_bytes: int = 8 * MIB) -> Arena:
        made.append(Arena(max_bytes, tmp_path))
        return made[-1]

    yield make
    for arena in made:
        arena.close()


def wide(key: str, tokens: tuple[int, ...]) -> PutRequest:
    """Return a put of one chunk of 4 KiB a token."""
    payload = finite(os.urandom(WIDE.token_bytes * len(tokens)))
    return PutRequest(key, tokens, (NewChunk(Span(0, len(tokens)), "wide", True, payload),))


def files(arena: Arena) -> set[str]:
    return {file.name for file in arena.directory.path.glob("*.kv")}


class ArenaMachine(RuleBasedStateMachine):
    """Whatever is taken, kept and let go: blocks never overlap, bytes stay, the limit holds, all comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.arena = Arena(256 << 10, Path(self.folder.name))
        self.held: list[tuple[Bytes, int]] = []
        self.numbers = itertools.cycle(range(1, 251))

    @rule(nbytes=st.integers(1, 2 * MIB), name=st.sampled_from("abc"))
    def take(self, nbytes: int, name: str) -> None:
        try:
            memory = self.arena.allocate(name, nbytes)
        except QuotaError:
            assert sum(len(m) for m, _ in self.held) + nbytes > 256 << 10, "refused within the budget"
            return
        number = next(self.numbers)
        memory[:] = number
        self.held.append((memory, number))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        del self.held[data.draw(st.integers(0, len(self.held) - 1))]

    @rule(name=st.sampled_from("abc"))
    def forget(self, name: str) -> None:
        self.arena.forget(name)

    @invariant()
    def blocks_are_apart_and_hold_what_was_written(self) -> None:
        spans = []
        for memory, number in self.held:
            assert memory[0] == memory[-1] == number
            block = self.arena.block_of(memory.data)
            assert block is not None
            spans.append((block.segment, block.offset - HEADER_BYTES, block.offset + block.nbytes))
        for (one, _, end), (other, start, _) in itertools.pairwise(sorted(spans)):
            assert one != other or end <= start

    @invariant()
    def files_stay_within_the_limit(self) -> None:
        sizes = [f.stat().st_size for f in self.arena.directory.path.glob("*.kv")]
        assert sum(sizes) == self.arena.reserved_bytes <= self.arena.capacity_bytes

    def teardown(self) -> None:
        self.held.clear()
        self.arena.allocate("a", 1)
        assert self.arena.reserved_bytes <= 3 * (self.arena.capacity_bytes // 32 + 4096)
        # Nothing was lost: the whole budget fits in one piece.
        assert len(self.arena.allocate("d", 256 << 10)) == 256 << 10
        self.arena.close()
        self.folder.cleanup()


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_namespaces_have_files_of_their_own(make_arena: MakeArena) -> None:
    arena = make_arena()
    held = [(name, arena.allocate(name, 1000 * i)) for i in range(1, 30) for name in "ab"]
    segments = {name: {arena.block_of(m.data).segment for n, m in held if n == name} for name in "ab"}
    assert segments["a"]
    assert not segments["a"] & segments["b"]


def test_a_block_tells_where_its_bytes_are_and_whose(make_arena: MakeArena) -> None:
    arena = make_arena()
    memory = arena.allocate("a", 5)
    memory[:] = list(b"hello")
    block = arena.block_of(memory.data.toreadonly().cast("B"))
    content = (arena.directory.path / block.segment).read_bytes()
    assert content[block.offset :][:5] == b"hello"
    generation = struct.unpack_from("<Q", content, block.offset - HEADER_BYTES)
    assert generation == (block.generation,)
    assert arena.block_of(memoryview(b"elsewhere")) is None
    del memory
    again = arena.allocate("a", 5)
    assert arena.block_of(again.data).offset == block.offset
    assert arena.block_of(again.data).generation != block.generation


def test_a_chunk_larger_than_a_segment_gets_one_of_its_own_that_goes_with_it(make_arena: MakeArena) -> None:
    arena = make_arena(64 * MIB)
    small = arena.allocate("a", 100)
    large = arena.allocate("a", 40 * MIB)
    block = arena.block_of(large.data)
    assert block.segment != arena.block_of(small.data).segment
    assert 40 * MIB < (arena.directory.path / block.segment).stat().st_size < 41 * MIB
    del large
    arena.allocate("a", 100)
    assert not (arena.directory.path / block.segment).exists()
    assert (arena.directory.path / arena.block_of(small.data).segment).exists()


def test_space_is_really_taken(make_arena: MakeArena) -> None:
    arena = make_arena()
    memory = arena.allocate("a", 3 * MIB)
    about = (arena.directory.path / arena.block_of(memory.data).segment).stat()
    assert about.st_blocks * 512 >= about.st_size > 3 * MIB


def test_files_and_directory_are_for_this_user_only_and_go_at_the_end(make_arena: MakeArena) -> None:
    arena = make_arena()
    held = arena.allocate("a", 100)
    held[:] = 9
    folder = arena.directory.path
    for path, mode in [(folder, 0o700), (folder.parent, 0o700), *[(f, 0o600) for f in folder.iterdir()]]:
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert (folder / "proof").read_bytes() == arena.directory.proof
    arena.close()
    assert not folder.exists()
    assert set(held) == {9}
    with pytest.raises(CacheUnavailableError, match="closed"):
        arena.allocate("a", 1)


def test_forgetting_a_namespace_removes_its_files_once_nobody_reads(make_arena: MakeArena) -> None:
    arena = make_arena()
    read, gone = arena.allocate("a", 10), arena.allocate("a", 7 * MIB)
    other = arena.allocate("b", 10)
    del gone
    arena.forget("a")
    assert files(arena) == {arena.block_of(m.data).segment for m in (read, other)}
    del read
    arena.allocate("b", 10)
    assert files(arena) == {arena.block_of(other.data).segment}


def test_a_full_file_system_is_a_quota_error(make_arena: MakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = make_arena()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(QuotaError, match="room"):
        arena.allocate("a", 10)
    assert files(arena) == set()
    assert arena.reserved_bytes == 0


# In a cache


def test_fragments_never_make_a_put_fail(make_arena: MakeArena) -> None:
    budget = 4 * MIB
    cache = LocalCache(budget, allocator=make_arena(budget))
    ns = namespace(layout=WIDE)
    cache.open(ns)
    for i in range(150):
        tokens = (4, 100, 250, 600)[i % 4] + i
        assert cache.put(wide(ns.key, words(f"{i:x}", tokens))).stored == 1
    assert 0 < cache.stats().stored_bytes + cache.stats().index_bytes <= budget
    cache.close()


def chunks_of(cache: LocalCache, key: str) -> int:
    return next(each.chunks for each in cache.stats().namespaces if each.namespace == key)


def test_a_put_of_another_namespace_evicts_about_what_it_stores(make_arena: MakeArena) -> None:
    """And the store stays full, although holes are where the evicted chunks were, in files of the other namespace."""
    budget = 32 * MIB
    arena = make_arena(budget)
    cache = LocalCache(budget, allocator=arena)
    a, b = namespace("a", WIDE), namespace("b", WIDE)
    for each in (a, b):
        cache.open(each)
    rng = random.Random(0)
    number = 0
    while cache.stats().namespaces[0].evicted_chunks < 100:
        number += 1
        tokens = words(f"{number:x}", rng.randint(16, 64))
        cache.put(wide(a.key, tokens))
        if number % 3 == 0:  # some are read, so that they do not leave in the order in which they lie
            list(cache.fetch(a.key, [m.donor.chunk_id for m in cache.match(ask(a.key, [tokens])).matches]))
    before = cache.stats().namespaces[0].stored_bytes
    most = 0
    for number in range(50):
        evicted = sum(n.evicted_chunks for n in cache.stats().namespaces)
        assert cache.put(wide(b.key, words(f"{number:x}b", 40))).stored == 1
        most = max(most, sum(n.evicted_chunks for n in cache.stats().namespaces) - evicted)
    lost, came = before - cache.stats().namespaces[0].stored_bytes, cache.stats().namespaces[1].stored_bytes
    assert came == 50 * 40 * WIDE.token_bytes
    assert lost < 1.25 * came
    assert cache.stats().stored_bytes > 0.9 * budget
    assert most < 12
    cache.close()


def test_many_namespaces_share_the_memory(make_arena: MakeArena) -> None:
    """More than there are segments of the least size, each in files of its own."""
    budget = 4 * MIB
    cache = LocalCache(budget, allocator=make_arena(budget))
    for number in range(300):
        ns = namespace(f"{number}")
        cache.open(ns)
        assert cache.put(offer(ns.key, [words("a"), words("b")])).stored == 2
    assert sum(n.chunks for n in cache.stats().namespaces) >= 2 * (8 * MIB + MIB // 2) // (64 << 10) - 2
    cache.close()


def test_memory_that_readers_hold_costs_others_little(make_arena: MakeArena) -> None:
    """A put that finds no memory is refused; however often it comes again, it does not empty the cache."""
    budget = 4 * MIB
    arena = make_arena(budget)
    cache = LocalCache(budget, allocator=arena)
    ns = namespace(layout=WIDE)
    cache.open(ns)
    held = []
    for number in range(12):
        cache.put(wide(ns.key, words(f"{number:x}", 10)))
        with contextlib.suppress(QuotaError):
            held.extend(arena.allocate(ns.key, 140_000) for _ in range(4))
    with contextlib.suppress(QuotaError):
        while True:
            held.append(arena.allocate(ns.key, 1000))
    before = chunks_of(cache, ns.key)
    assert before == 12
    for number in range(200):
        with pytest.raises(QuotaError):
            cache.put(wide(ns.key, words(f"{number:x}x", 60)))
    assert chunks_of(cache, ns.key) >= before - 4
    held.clear()
    assert cache.put(wide(ns.key, words("y", 60))).stored == 1
    cache.close()


def test_a_full_file_system_does_not_empty_the_cache(make_arena: MakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 4 * MIB
    cache = LocalCache(budget, allocator=make_arena(budget))
    ns, other = namespace(layout=WIDE), namespace("other", WIDE)
    for each in (ns, other):
        cache.open(each)
    for number in range(25):
        cache.put(wide(ns.key, words(f"{number:x}", 40)))
    before = chunks_of(cache, ns.key)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for number in range(20):
        with pytest.raises(QuotaError):
            cache.put(wide(other.key, words(f"{number:x}x", 40)))
    assert chunks_of(cache, ns.key) > before / 2
    cache.close()


_TWO_HUNDRED = """
import resource, sys; from pathlib import Path
from kvboost.index import LocalCache; from kvboost.index.arena import Arena
from tests.contracts.chunks import namespace, offer, words
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
arena = Arena(16 << 20, Path(sys.argv[1])); cache = LocalCache(16 << 20, allocator=arena)
for number in range(200):
    ns = namespace(f"{number}"); cache.open(ns)
    assert cache.put(offer(ns.key, [words("a")])).stored == 1
print(sum(n.chunks for n in cache.stats().namespaces))
files, ns = [], namespace("last")
cache.open(ns)
reserved = arena.reserved_bytes
try:
    while True: files.append(open("/dev/null"))
except OSError: pass
try: cache.put(offer(ns.key, [words("a")]))
except Exception as error: print(type(error).__name__)
for file in files: file.close()
print(sum(n.chunks for n in cache.stats().namespaces), arena.reserved_bytes - reserved)
print(sum(f.stat().st_size for f in arena.directory.path.glob("*.kv")) - reserved)
assert cache.put(offer(ns.key, [words("a")])).stored == 1
cache.close()
"""


def test_namespaces_take_no_descriptors_and_a_lack_of_them_costs_nothing(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", _TWO_HUNDRED, str(tmp_path)]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    assert told.stdout.split() == ["200", "CacheUnavailableError", "200", "0", "0"], told.stderr


def test_a_segment_that_cannot_be_mapped_leaves_no_file(make_arena: MakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = make_arena()

    def refused(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("kvboost.index.arena.map_shared", refused)
    with pytest.raises(CacheUnavailableError, match="Cannot allocate memory"):
        arena.allocate("a", 10)
    assert files(arena) == set()
    assert arena.reserved_bytes == 0


def test_a_mapping_ends_with_the_last_view_of_it(tmp_path: Path) -> None:
    arena = Arena(8 * MIB, tmp_path)
    memory = arena.allocate("a", 100)
    memory[:] = 7
    view = memory[10:20].data
    name = arena.block_of(memory.data).segment
    arena.close()
    del memory, arena
    gc.collect()
    maps = Path(f"/proc/{os.getpid()}/maps")
    assert name in maps.read_text()
    assert bytes(view) == bytes([7] * 10)
    del view
    gc.collect()
    assert name not in maps.read_text()


def test_a_put_is_refused_with_a_quota_error_when_readers_hold_everything(make_arena: MakeArena) -> None:
    budget = 2 * MIB
    arena = make_arena(budget)
    cache = LocalCache(budget, allocator=arena)
    ns = namespace(layout=WIDE)
    cache.open(ns)
    held: list[ChunkKV] = []

    def put_and_keep(number: int) -> None:
        tokens = words(f"{number:x}", 150)
        cache.put(wide(ns.key, tokens))
        (match,) = cache.match(ask(ns.key, [tokens])).matches
        held.extend(cache.fetch(ns.key, [match.donor.chunk_id]))

    with pytest.raises(QuotaError, match="max_bytes"):
        deque(map(put_and_keep, range(100)))
    assert sum(memoryview(kv.payload).nbytes for kv in held) > budget
    for kv in held:
        kv.verified()
    held.clear()
    gc.collect()
    assert cache.put(wide(ns.key, words("x", 480))).stored == 1
    cache.close()


def test_an_evicted_chunk_that_is_read_stays_and_its_space_comes_back_later(make_arena: MakeArena) -> None:
    arena = make_arena()
    cache = LocalCache(MIB, allocator=arena)
    ns = namespace()
    cache.open(ns)
    cache.put(offer(ns.key, [words("a")]))
    (match,) = cache.match(ask(ns.key, [words("a")])).matches
    (kv,) = cache.fetch(ns.key, [match.donor.chunk_id])
    block = arena.block_of(memoryview(kv.payload))
    before = bytes(kv.verified())
    cache.evict(ns.key, [match.donor.chunk_id])
    for i in range(200):
        cache.put(offer(ns.key, [words(f"{i:x}b")]))
    assert bytes(kv.verified()) == before
    assert block.nbytes == 16 * LAYOUT.token_bytes
    cache.close()


# Leftovers

_SERVER = "import sys, time; from pathlib import Path; from kvboost.index.arena import Arena\n" + (
    "arena = Arena(1 << 20, Path(sys.argv[1])); held = arena.allocate('a', 100)\n"
    "print(arena.directory.path, flush=True); exec(sys.argv[2])"
)


def start(folder: Path, end: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(folder), end], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    process.stdout.close()
    return process, path


def test_a_killed_servers_files_go_when_the_next_starts_and_a_living_ones_stay(tmp_path: Path) -> None:
    dead, left = start(tmp_path, "time.sleep(60)")
    living, kept = start(tmp_path, "time.sleep(60)")
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    assert list(left.glob("*.kv"))
    arena = Arena(1 << 20, tmp_path)
    assert not left.exists()
    assert list(kept.glob("*.kv"))
    arena.close()
    living.kill()
    living.wait()


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "raise SystemError"])
def test_a_process_that_ends_removes_its_files(tmp_path: Path, end: str) -> None:
    process, path = start(tmp_path, end)
    process.wait()
    assert not path.exists()


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"kvboost-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="arena_dir"):
        Arena(1 << 20, tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="arena_dir"):
        Arena(1 << 20, tmp_path / "file")
