"""LlamaIndex: retrieved nodes as chunks of their own, in an order of which more is cached.

    engine = index.as_query_engine(node_postprocessors=[MarkDocuments()], text_qa_template=TEMPLATE, llm=...)

In the template a blank line should follow ``{context_str}``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvboost.documents import SEPARATOR, DocumentOrder

try:
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "kvboost.integrations.llamaindex needs llama-index-core; pip install 'kvboost-chunks[llamaindex]'",
        name=error.name,
    ) from error


class MarkDocuments(BaseNodePostprocessor):
    """Marks retrieved nodes so that each is found in the cache in any order; must be the last postprocessor.

    What a node says to the model, its metadata included, is fixed in its text: the synthesizer joins these texts with
    blank lines, which gives what :func:`kvboost.documents.marked` does. Nodes without text are left out.

    Attributes
    ----------
    order
        Puts them into an order of which more is cached, such as :meth:`kvboost.client.RuntimeClient.order` with what
        stands before the documents filled in; without it they stay as they are.
    """

    order: Callable[[Sequence[str]], DocumentOrder] | None = None

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex writes this component down."""
        return "MarkDocuments"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        found = [(node, node.node.get_content(MetadataMode.LLM).strip()) for node in nodes]
        found = [(node, text) for node, text in found if text]
        if self.order is not None and found:
            found = self.order([text for _, text in found]).apply(found)
        return [_marked(node, text, first=i == 0) for i, (node, text) in enumerate(found)]


def _marked(node: NodeWithScore, text: str, first: bool) -> NodeWithScore:
    before = f"{SEPARATOR}\n\n" if first else ""
    metadata = node.node.metadata
    fixed = TextNode(
        id_=node.node.node_id,
        text=f"{before}{text}\n\n{SEPARATOR}",
        metadata=metadata,
        excluded_llm_metadata_keys=list(metadata),
        relationships=node.node.relationships,
    )
    return NodeWithScore(node=fixed, score=node.score)
