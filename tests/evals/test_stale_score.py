"""Which value does an answer give?"""

from __future__ import annotations

import pytest

from evals._stale_score import contains, judge


@pytest.mark.parametrize(
    ("answer", "old", "new", "expected"),
    [
        ("The limit is 15 MB.", ["15"], ["34"], (True, False)),
        ("The limit is 34MB.", ["15"], ["34"], (False, True)),
        ("The limit is 150 MB.", ["15"], ["34"], (False, False)),
        ("The limit is 115.", ["15"], ["34"], (False, False)),
        ("It is 1.15, or 15.5, or 15,000.", ["15"], ["34"], (False, False)),
        ("It was 15, now it is 34.", ["15"], ["34"], (True, True)),
        ("It is (15).", ["15"], ["34"], (True, False)),
        ("A v15 model, B15.", ["15"], ["34"], (False, False)),
        ("The limit is １５ MB.", ["15"], ["34"], (True, False)),
        ("No idea.", ["15"], ["34"], (False, False)),
        ("", ["15"], ["34"], (False, False)),
        ("Guest accounts are not allowed.", ["allowed", "yes"], ["not allowed", "no"], (False, True)),
        ("Guest accounts are allowed.", ["allowed", "yes"], ["not allowed", "no"], (True, False)),
        ("Yes, they are not  allowed.", ["allowed", "yes"], ["not allowed", "no"], (True, True)),
        ("I know nothing.", ["allowed", "yes"], ["not allowed", "no"], (False, False)),
        ("Parts come from New York.", ["York"], ["New York"], (False, True)),
        ("Parts come from York.", ["York"], ["New York"], (True, False)),
        ("Ask HELEN  brandt's team.", ["Helen Brandt"], ["Victor Osei"], (True, False)),
        ("On 14 March.", ["4 March"], ["14 March"], (False, True)),
        ("本系统不允许访客账号。", ["允许"], ["不允许"], (False, True)),
        ("本系统允许访客账号。", ["允许"], ["不允许"], (True, False)),
        ("联系人是王芳。", ["王芳"], ["赵敏"], (True, False)),
        ("审计在11月3日。", ["1月3日"], ["11月3日"], (False, True)),
        ("最大容量为34兆。", ["15"], ["34"], (False, True)),
    ],
)
def test_judge(answer: str, old: list[str], new: list[str], expected: tuple[bool, bool]) -> None:
    verdict = judge(answer, old, new)
    assert (verdict.old, verdict.new) == expected
    assert verdict.stale == expected[0]


def test_contains_takes_any_wording() -> None:
    assert contains("On March 4 at noon", ["4 March", "March 4"])
    assert not contains("On March 41", ["4 March", "March 4"])
