"""The segmenter as a whole, on two kinds of tokenizer."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvboost.errors import EmptyPromptError, InputError, TensorError
from kvboost.segment import Segmenter
from kvboost.segment.semantic import dips
from kvboost.types import check_chunks
from tests.segment.prompts import byte_level, ids_of, long_paragraphs, metaspace, paragraphs, prompts

MIN, MAX = 8, 24


class LetterEmbedder:
    """Unit vectors of letter counts: real enough for sentences in disjoint alphabets."""

    name = "letters"
    dim = 26

    def __init__(self):
        self.seen = 0

    def embed(self, texts):
        self.seen += len(texts)
        rows = np.array([[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts], np.float32) + 1e-3
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


SEGMENTERS = {
    "byte_level": (byte_level, Segmenter(byte_level(), MIN, MAX)),
    "metaspace": (metaspace, Segmenter(metaspace(), MIN, MAX)),
    "embedding": (byte_level, Segmenter(byte_level(), MIN, MAX, "embedding", embedder=LetterEmbedder())),
}
every = pytest.mark.parametrize(("make", "segmenter"), SEGMENTERS.values(), ids=SEGMENTERS)
bounded = settings(max_examples=40, deadline=None)


def texts(segmenter, make, prompt):
    return [chunk.text for chunk in segmenter.segment(ids_of(make(), prompt)).chunks]


@every
@given(prompt=prompts)
@bounded
def test_chunks_and_sentences_cover_the_prompt(make, segmenter, prompt):
    ids = ids_of(make(), prompt)
    found = segmenter.segment(ids)
    check_chunks(ids, [chunk.span for chunk in found.chunks])
    check_chunks(ids, found.sentences)
    assert "".join(chunk.text for chunk in found.chunks) == segmenter._texts(ids).text
    assert all(len(chunk.span) <= MAX for chunk in found.chunks)


@every
@given(data=st.data())
@bounded
def test_any_ids_are_covered(make, segmenter, data):
    ids = data.draw(st.lists(st.integers(0, len(make()) + 3), min_size=1, max_size=200))
    found = segmenter.segment(ids)
    check_chunks(ids, [chunk.span for chunk in found.chunks])
    check_chunks(ids, found.sentences)
    assert all(len(chunk.span) <= MAX for chunk in found.chunks)


@every
@given(paragraph=long_paragraphs)
@bounded
def test_one_paragraph_keeps_to_the_minimum(make, segmenter, paragraph):
    assume("//" not in paragraph)  # a chunk may end early so that a URL stays whole
    chunks = segmenter.segment(ids_of(make(), paragraph)).chunks
    assert all(len(chunk.span) >= MIN for chunk in chunks[:-1])


@every
@given(before=prompts, old=long_paragraphs, new=long_paragraphs, after=prompts)
@bounded
def test_an_edit_inside_a_paragraph_changes_that_paragraphs_chunks_only(make, segmenter, before, old, new, after):
    head, tail = f"{before}\n\n", f"\n\n{after}"
    assert others(segmenter, make, head, old, tail) == others(segmenter, make, head, new, tail)


def others(segmenter, make, head, paragraph, tail):
    """Return the texts of the chunks that share no character with ``paragraph`` or the blank line after it."""
    start, end = len(head), len(head) + len(paragraph) + 2
    at, left, right = 0, [], []
    for text in texts(segmenter, make, head + paragraph + tail):
        if at + len(text) <= start:
            left.append(text)
        elif at >= end:
            right.append(text)
        at += len(text)
    return left, right


@every
@given(old=prompts, more=prompts)
@bounded
def test_an_appended_paragraph_changes_the_last_chunk_at_most(make, segmenter, old, more):
    before = texts(segmenter, make, old)
    after = texts(segmenter, make, f"{old}\n\n{more}")
    assert after[: len(before) - 1] == before[:-1]


@pytest.mark.parametrize(("make", "segmenter"), [SEGMENTERS["byte_level"], SEGMENTERS["metaspace"]])
@given(old=prompts, more=paragraphs)
@bounded
def test_an_appended_sentence_changes_the_last_chunk_at_most(make, segmenter, old, more):
    assume(old[-1] not in "`|>")  # the end of a fence, a row or a special token is no place for prose
    before = texts(segmenter, make, old)
    after = texts(segmenter, make, f"{old} {more}")
    assert after[: len(before) - 1] == before[:-1]


@every
@given(paragraph=long_paragraphs, one=prompts, other=prompts)
@bounded
def test_a_paragraph_has_the_same_chunks_wherever_it_stands(make, segmenter, paragraph, one, other):
    def inner(before):
        head = f"{before}\n\n"
        at, found = 0, []
        for text in texts(segmenter, make, f"{head}{paragraph}\n\n{paragraph}"):
            if len(head) < at < len(head) + len(paragraph):
                found.append(text)
            at += len(text)
        return found

    assert inner(one) == inner(other)


@every
def test_text_without_boundaries_is_cut_by_count(make, segmenter):
    for text in ("ab" * 3000, "字" * 600, "ab cd " * 600):
        chunks = segmenter.segment(ids_of(make(), text)).chunks
        assert all(MIN <= len(chunk.span) <= MAX for chunk in chunks[:-1])


def test_a_character_of_several_tokens_stays_whole():
    _, segmenter = SEGMENTERS["byte_level"]
    found = texts(segmenter, byte_level, "😀你" * 100)
    assert "".join(found) == "😀你" * 100
    assert "\ufffd" not in "".join(found)


def test_a_short_url_is_not_cut():
    _, segmenter = SEGMENTERS["byte_level"]
    url = "https://aa.bb/cc?dd"
    size = len(ids_of(byte_level(), url))
    assert MAX - MIN < size <= MAX
    found = texts(segmenter, byte_level, f"a b c d e f g {url} " * 4)
    assert sum(text.count(url) for text in found) == 4


def test_a_chat_template_parts_turns():
    _, segmenter = SEGMENTERS["byte_level"]
    body = "The cache holds keys and values of every chunk that a prompt was cut into. " * 2
    prompt = f"<|im_start|>user\n{body}<|im_end|>\n<|im_start|>assistant\n"
    found = texts(segmenter, byte_level, prompt)
    assert "".join(found) == prompt
    assert found[-1] == "<|im_end|>\n<|im_start|>assistant\n"
    assert texts(segmenter, byte_level, prompt + "Yes. " + body)[: len(found) - 1] == found[:-1]


def test_tokens_without_text_are_covered():
    _, segmenter = SEGMENTERS["byte_level"]
    unknown = len(byte_level()) + 10
    found = segmenter.segment([unknown] * 50)
    assert sum(len(chunk.span) for chunk in found.chunks) == 50
    assert segmenter.segment([unknown]).chunks[0].text == ""


@given(paragraph=paragraphs)
@bounded
def test_repeating_a_call_gives_the_same(paragraph):
    _, segmenter = SEGMENTERS["byte_level"]
    ids = ids_of(byte_level(), paragraph)
    assert segmenter.segment(ids) == segmenter.segment(ids) == Segmenter(byte_level(), MIN, MAX).segment(ids)


def test_numpy_ids_are_fine_and_an_empty_prompt_is_not():
    _, segmenter = SEGMENTERS["byte_level"]
    ids = ids_of(byte_level(), "He went home.")
    assert segmenter.segment(np.array(ids)) == segmenter.segment(ids)
    with pytest.raises(EmptyPromptError, match="no tokens"):
        segmenter.segment([])


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="boundaries 'page'"):
        Segmenter(byte_level(), boundaries="page")
    with pytest.raises(InputError, match="need an embedder"):
        Segmenter(byte_level(), boundaries="embedding")
    with pytest.raises(InputError, match="max_tokens 8"):
        Segmenter(byte_level(), max_tokens=8)


def test_learned_boundaries_part_topics_and_embed_once():
    embedder = LetterEmbedder()
    segmenter = Segmenter(byte_level(), 4, 64, "embedding", embedder=embedder)
    first, second = "Aba bab aab bba. Bab aba baa. Abab baba ab.", " Xyz zyx yxz xxz. Zzy yxx zy. Yzx zx."
    assert texts(segmenter, byte_level, first + second) == [first, second]
    seen = embedder.seen
    texts(segmenter, byte_level, first + second)
    assert embedder.seen == seen


def test_a_dip_depends_on_what_is_before_it_only():
    rows = np.eye(4, dtype=np.float32)[[0, 0, 0, 1, 1, 2, 2, 2]]
    assert dips(rows) == [False, False, True, False, True, False, False]
    assert dips(rows[:5]) == dips(rows)[:4]


def test_a_broken_embedder_is_named():
    class Broken(LetterEmbedder):
        name = "broken"

        def embed(self, texts):
            return super().embed(texts) * np.nan

    segmenter = Segmenter(byte_level(), 4, 64, "embedding", embedder=Broken())
    with pytest.raises(TensorError, match="'broken'"):
        segmenter.segment(ids_of(byte_level(), "One two three four. Five six seven. Eight."))


@every
def test_a_document_is_cut_alike_whatever_turn_it_opens(make, segmenter):
    document = "The first sentence of a document says what it is about. " * 3
    opened = [f"<|im_start|>user\n{document}", f"Hi.<|im_end|>\n<|im_start|>system\n{document}"]
    first, second = ([t for t in texts(segmenter, make, prompt) if "sentence" in t] for prompt in opened)
    assert first == second
