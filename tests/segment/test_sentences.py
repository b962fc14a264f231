"""Hard cases: where sentences end and where they do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvboost.errors import InputError
from kvboost.segment.blocks import Kind, find_blocks
from kvboost.segment.language import FullStops
from kvboost.segment.sentences import clause_ends, unit_ends, word_ends

STOPS = FullStops()


def units(text, stops=STOPS):
    found = []
    for block in find_blocks(text):
        own, at = text[block.start : block.end], 0
        for end in unit_ends(own, block.kind, stops):
            found.append(own[at:end])
            at = end
    return found


# "¦" stands where a unit ends.
CASES = [
    "He went home.¦ He was tired.",
    "Dr. Smith met Mr. Jones.¦ They talked.",
    "See Fig. 3 for this.¦ Then Eq. (4) follows.",
    "Use tools, e.g. Python, i.e. a language.¦ Done.",
    "Smith et al. (2020) say so.¦ Others do not.",
    "Pi is 3.14 today.¦ Version 2.0.1 is out.",
    "There is no. 5 here.¦ I say no.¦ Absolutely not.",
    "See pp. 12 and vol. 3 of it.¦ Next.",
    "He lives in the U.S. and works.¦ She does not.",
    "J. R. R. Tolkien wrote it.¦ It is long.",
    "It is at https://a.b/c?d=e.f or http://x.y/z.¦ Go there.",
    "It ends at 5 p.m. on Monday.¦ Come.",
    '"Stop!" he said.¦ "Why?"¦ She left.',
    "(Really.)¦ Yes.¦ **Bold.**¦ Next one.",
    "Wait… what?¦ Well... but no.¦ So?!¦ Yes.",
    "Run foo.bar() and x.py now.¦ Then stop.",
    "The etc. and so on.¦ All.",
    "你好。¦“他说：走吧。”¦她笑了！¦真的？¦好……¦然后",
    "他说「走吧。」¦她走了；¦他没走。",
    "价格是3.5元。¦很便宜！¦GPT-4很好。",
    "中文 English mixed.¦ 然后。¦End.",
    "यह है।¦ वह है॥¦ ठीक",
    "هل هذا صحيح؟¦ نعم.",
    "One sentence\n\n¦Another without stop\n\n¦Third",
    "# A heading\n¦Text follows.¦ More.",
    "Title\n¦=====\n¦Text.",
    "1. First item.¦ It has two.\n¦2. Second\n¦10) Tenth",
    "- one\n¦- two\n¦* three\n¦- [ ] task",
    "一、第一项\n¦二、第二项",
    "| a. B | c |\n¦|---|---|\n¦| 1. 2 | x! Y |\n",
    "```\n¦x = 1. Y\n\n¦foo(). Bar\n¦```\n¦After it.¦ End.",
    "```inline``` code is no fence.¦ It goes on.",
    "~~~~\n¦~~~\n¦x. Y\n¦~~~~\n¦After.¦ End.",
    "hey are you coming\n¦yeah in five\n¦ok",
    "bob: hi there\n¦alice: yo\n",
    "<|im_start|>user\n¦Hi there.¦ You?¦<|im_end|>\n¦<|im_start|>assistant\n",
    "[INST]¦ Hi there ¦[/INST]¦ Hello",
    "Document [1](Title: A) Text one.\n¦Document [2](Title: B) Text two.",
    "This is a hard wrapped line of prose that goes on for a while, at least\nuntil here.¦ And then another one.",
    "这是一行很长的中文文字没有句号但是在这里换行因为宽度已经足够了\n所以这里还是同一句。¦完。",
]


@pytest.mark.parametrize("marked", CASES)
def test_hard_case(marked):
    assert units(marked.replace("¦", "")) == marked.split("¦")


def test_other_languages_have_their_own_abbreviations():
    text = "Das ist z.B. ein Satz. Er kam am 3. Oktober an."
    assert units(text, FullStops("german")) == ["Das ist z.B. ein Satz.", " Er kam am 3. Oktober an."]


def test_an_unknown_language_is_refused_by_name():
    with pytest.raises(InputError, match=r"'klingon'.*english"):
        FullStops("klingon")
    with pytest.raises(InputError, match="language"):
        FullStops("../english")


def test_asking_does_not_grow_the_parameters():
    stops = FullStops()
    size = len(stops._punkt._params.ortho_context)
    for i in range(50):
        stops.ends_sentence(f"zzz{i}.", f"Yyy{i}")
    assert len(stops._punkt._params.ortho_context) == size


@given(before=st.sampled_from(["He was in the U.S. ", "See no. ", "Yes. ", "Mr. ", ""]))
def test_a_boundary_does_not_depend_on_text_before_the_paragraph(before):
    text = "In 1990 he left the U.S. In 1991 he came back. No. 5 is alive."
    assert units(f"{before}\n\n{text}")[-3:] == units(text)[-3:]


@given(st.text(st.sampled_from("aA1 .,!?…。！\n\t-|#>`*\"'”)(:;，[]<|~=_É你👍")))
def test_units_and_blocks_cover_any_text(text):
    blocks = find_blocks(text)
    assert "".join(text[block.start : block.end] for block in blocks) == text
    assert "".join(units(text)) == text
    assert all(units(text))


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("one, two; three: four", ["one,", " two;", " three:", " four"]),
        ("1,000 at 12:30, see http://a.b", ["1,000 at 12:30,", " see http://a.b"]),
        ("我们去了，看了、吃了", ["我们去了，", "看了、", "吃了"]),
        ("this—that", ["this—", "that"]),
        ("- item, text", ["- item,", " text"]),
    ],
)
def test_clause_marks(text, clauses):
    ends = [*clause_ends(text), len(text)]
    assert [text[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] == clauses


def test_words_are_not_parted_from_their_list_marker():
    assert [*word_ends("1. two three")] == [6, 12]
    assert [*word_ends("two\n  - three four")] == [4, 13, 18]


def test_kinds_of_blocks():
    text = "# H\ntext\n- item\n| a | b |\n> quote\n```\ncode\n```\nend"
    assert [block.kind for block in find_blocks(text)] == [
        Kind.HEADING, Kind.PROSE, Kind.LIST, Kind.TABLE, Kind.QUOTE, Kind.FENCE, Kind.PROSE,
    ]  # fmt: skip


def test_special_spans_are_blocks():
    text = "abc<END>def"
    assert [text[b.start : b.end] for b in find_blocks(text, [(3, 8)])] == ["abc", "<END>", "def"]
