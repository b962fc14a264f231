"""Free ranges of a segment: nothing is given out twice, nothing is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvboost.index.space import FreeSpace

SIZE = 256


class SpaceMachine(RuleBasedStateMachine):
    """Against a plain map of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.space = FreeSpace(SIZE)
        self.used = [False] * SIZE
        self.taken: list[tuple[int, int]] = []

    @rule(nbytes=st.integers(1, SIZE + 8))
    def take(self, nbytes: int) -> None:
        start = self.space.take(nbytes)
        if start is None:
            assert self.longest() < nbytes
            return
        assert not any(self.used[start : start + nbytes])
        self.mark(start, nbytes, True)
        self.taken.append((start, nbytes))

    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        if self.taken:
            start, nbytes = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
            self.space.give(start, nbytes)
            self.mark(start, nbytes, False)

    @invariant()
    def figures_are_those_of_the_map(self) -> None:
        assert self.space.free_bytes == self.used.count(False)
        assert self.space.largest == self.longest()
        assert self.space.is_empty == (not any(self.used))

    def mark(self, start: int, nbytes: int, used: bool) -> None:
        self.used[start : start + nbytes] = [used] * nbytes
        assert len(self.used) == SIZE

    def longest(self) -> int:
        runs = "".join("x" if used else "." for used in self.used).split("x")
        return max(map(len, runs))


TestSpaceMachine = SpaceMachine.TestCase
TestSpaceMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.randoms())
def test_whatever_the_order_it_is_one_range_again_at_the_end(sizes, random):
    space = FreeSpace(SIZE)
    taken = [(start, n) for n in sizes if (start := space.take(n)) is not None]
    random.shuffle(taken)
    for start, nbytes in taken:
        space.give(start, nbytes)
    assert (space.largest, space.take(SIZE)) == (SIZE, 0)


def test_the_tightest_range_is_taken():
    space = FreeSpace(100)
    for _ in range(10):
        space.take(10)
    space.give(0, 10)
    space.give(10, 10)
    space.give(50, 10)
    assert space.take(10) == 50
    assert space.take(20) == 0
