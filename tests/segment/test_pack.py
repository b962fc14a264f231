"""Packing of units into chunks, on token counts alone."""

import pytest

from kvboost.errors import InputError
from kvboost.segment.pack import Paragraph, Sizes, pack

SIZES = Sizes(4, 10)


def by_count(at):
    return at + SIZES.max_tokens


def ends(*paragraphs):
    return pack(paragraphs, SIZES, by_count)


def paragraph(start, *lengths, **options):
    unit_ends, at = [], start
    for length in lengths:
        at += length
        unit_ends.append(at)
    return Paragraph(start, tuple(unit_ends), **options)


def test_sentences_join_until_the_minimum():
    assert ends(paragraph(0, 2, 3, 4, 1, 5)) == [5, 9, 15]


def test_a_short_rest_joins_the_chunk_before_it_where_it_fits():
    assert ends(paragraph(0, 5, 5, 2)) == [5, 12]
    assert ends(paragraph(0, 5, 9, 2)) == [5, 14, 16]


def test_a_long_sentence_is_cut_and_its_tail_goes_on():
    assert ends(paragraph(0, 23, 4)) == [10, 20, 27]
    assert ends(paragraph(0, 3, 9)) == [10, 12]


def test_paragraphs_do_not_share_chunks():
    assert ends(paragraph(0, 5, 2), paragraph(7, 6)) == [7, 13]


def test_a_heading_goes_with_its_text():
    assert ends(paragraph(0, 6), paragraph(6, 3), paragraph(9, 5, 5)) == [6, 14, 19]


def test_a_heading_stands_alone_where_both_do_not_fit():
    assert ends(paragraph(0, 3), paragraph(3, 9)) == [3, 12]


def test_what_is_joined_or_not_stays_so_when_the_paragraph_grows():
    assert ends(paragraph(0, 3), paragraph(3, 10)) == [3, 13]
    assert ends(paragraph(0, 3), paragraph(3, 11)) == [3, 13, 14]
    assert ends(paragraph(0, 3), paragraph(3, 6, 3)) == [9, 12]
    assert ends(paragraph(0, 3), paragraph(3, 6, 4)) == [9, 13]


def test_short_paragraphs_join_from_the_left():
    assert ends(paragraph(0, 3), paragraph(3, 3), paragraph(6, 2), paragraph(8, 5)) == [6, 13]


def test_a_short_rest_at_the_end_of_the_prompt_stands_alone():
    assert ends(paragraph(0, 5), paragraph(5, 2)) == [5, 7]
    assert ends(paragraph(0, 1)) == [1]


def test_lines_are_not_cut_while_they_fit():
    assert ends(paragraph(0, 3, 9, 12, 4, by_line=True)) == [3, 12, 22, 28]


def test_with_breaks_a_chunk_fills_up_to_the_next_break():
    assert ends(paragraph(0, 4, 3, 4, 4, 4, breaks=frozenset({15}))) == [7, 15, 19]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((0, 8), "min_tokens 0"), ((9, 8), "min_tokens 9"), ((4, 0), "max_tokens 0"), ((2.5, 8), "min_tokens 2.5"),
     ((True, 8), "min_tokens True")],
)  # fmt: skip
def test_sizes_out_of_range_are_refused(sizes, message):
    with pytest.raises(InputError, match=message):
        Sizes(*sizes)
