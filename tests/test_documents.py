"""Marked documents are cut alike wherever they stand, by hand and through the frameworks' adapters."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvboost.documents import SEPARATOR, DocumentOrder, marked
from kvboost.errors import InputError
from kvboost.segment import Segmenter
from tests.segment.prompts import byte_level, ids_of, metaspace, prompts

DOCUMENTS = (
    "Short.\n\n# Heading",
    "# Title\n\nHe went home, and then he was tired. Nobody asked why the question had been put to them.\n\nEnd",
    "- an item of a list, with words\n- another item\n\n```python\nthe fence is never closed",
    "The cache holds keys and values of every chunk that a prompt was cut into. A chunk ends with a sentence.",
)
BEFORE = "Use these:\n\n"
QUESTION = "Why?"
SEGMENTERS = {name: (make(), Segmenter(make(), 8, 24)) for name, make in (("bytes", byte_level), ("words", metaspace))}
each_tokenizer = pytest.mark.parametrize("name", SEGMENTERS)


def cut(name: str, text: str) -> list[tuple[int, ...]]:
    """Return the token ids of every chunk."""
    tokenizer, segmenter = SEGMENTERS[name]
    ids = ids_of(tokenizer, text)
    return [tuple(ids[chunk.span.start : chunk.span.end]) for chunk in segmenter.segment(ids).chunks]


def own_chunks(name: str, document: str) -> list[tuple[int, ...]]:
    """Return the chunks of a document that is cached alone; the line before it belongs to what stands there."""
    bare = cut(name, marked(["x"]))[0]
    found = cut(name, marked([document]))
    assert found[0] == bare
    return found[1:]


def stands_in(own: list[tuple[int, ...]], whole: list[tuple[int, ...]]) -> bool:
    return any(whole[i : i + len(own)] == own for i in range(len(whole)))


@each_tokenizer
@pytest.mark.parametrize("order", [*permutations(range(4))], ids=str)
def test_chunks_of_a_document_do_not_depend_on_its_neighbours(name: str, order: tuple[int, ...]) -> None:
    whole = cut(name, f"{BEFORE}{marked(DOCUMENTS[i] for i in order)}{QUESTION}")
    for document in DOCUMENTS:
        assert stands_in(own_chunks(name, document), whole)


def test_blank_lines_alone_do_not_do_that() -> None:
    whole = cut("bytes", "\n\n".join([BEFORE.strip(), *DOCUMENTS, QUESTION]))
    assert not all(stands_in(cut("bytes", f"{document}\n\n"), whole) for document in DOCUMENTS)


@given(documents=st.lists(prompts.filter(str.strip), min_size=1, max_size=3), question=st.sampled_from(["Why?", ""]))
@settings(max_examples=40, deadline=None)
def test_any_text_is_cut_alike_in_both_orders(documents: list[str], question: str) -> None:
    name = "bytes"  # the other one makes tokens that reach over line ends
    for some in (documents, documents[::-1]):
        whole = cut(name, f"{BEFORE}{marked(some)}{question}")
        assert all(stands_in(own_chunks(name, document), whole) for document in documents)


def test_what_is_no_document_is_refused() -> None:
    with pytest.raises(InputError, match=r"documents\[1\] is empty"):
        marked(["a", " \n"])
    with pytest.raises(InputError, match="not one text"):
        marked("a")
    assert marked([]) == f"{SEPARATOR}\n\n"


def reverse(texts: Any) -> DocumentOrder:
    return DocumentOrder(tuple(range(len(texts)))[::-1], 0, 0)


def test_langchain() -> None:
    documents = pytest.importorskip("langchain_core.documents", reason="langchain-core is not installed")
    from kvboost.integrations.langchain import CacheAwareOrder, format_documents

    found = [documents.Document(text, metadata={"n": i}) for i, text in enumerate(DOCUMENTS)]
    assert format_documents(found) == marked(DOCUMENTS)
    compressor = CacheAwareOrder(order=reverse)
    assert [each.metadata["n"] for each in compressor.compress_documents(found, "why")] == [3, 2, 1, 0]
    assert compressor.compress_documents([], "why") == []


@pytest.mark.parametrize("order", [None, reverse])
def test_llamaindex(order: Any) -> None:
    schema = pytest.importorskip("llama_index.core.schema", reason="llama-index-core is not installed")
    from kvboost.integrations.llamaindex import MarkDocuments

    nodes = [
        schema.NodeWithScore(node=schema.TextNode(text=text, metadata={"file": f"{i}.txt"}), score=1.0 - i / 10)
        for i, text in enumerate((*DOCUMENTS, " "))
    ]
    nodes[-1].node.metadata = {}
    said = [node.node.get_content(schema.MetadataMode.LLM) for node in nodes[:-1]]
    found = MarkDocuments(order=order).postprocess_nodes(nodes)
    joined = "\n\n".join(node.node.get_content(schema.MetadataMode.LLM) for node in found)
    assert f"{joined}\n\n" == marked(said if order is None else said[::-1])
    assert "file: 0.txt" in joined
    originals = nodes[:-1] if order is None else nodes[:-1][::-1]
    assert [(n.node.node_id, n.score) for n in found] == [(n.node.node_id, n.score) for n in originals]
