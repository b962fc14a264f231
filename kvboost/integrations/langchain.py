"""LangChain: retrieved documents as chunks of their own, in an order of which more is cached.

    chain = {"context": retriever | format_documents, "question": RunnablePassthrough()} | prompt | ChatOpenAI(...)

The prompt must have nothing but the question, or other text, behind ``{context}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvboost.documents import DocumentOrder, marked

try:
    from langchain_core.callbacks import Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "kvboost.integrations.langchain needs langchain-core; pip install 'kvboost-chunks[langchain]'", name=error.name
    ) from error


def format_documents(documents: Iterable[Document]) -> str:
    """Return the documents' texts for a prompt, marked so that each is found in the cache in any order."""
    return marked([document.page_content for document in documents])


class CacheAwareOrder(BaseDocumentCompressor):
    """Puts retrieved documents into an order of which more is cached; none is left out.

    Attributes
    ----------
    order
        Such as :meth:`kvboost.client.RuntimeClient.order`, with what stands before the documents filled in.
    """

    order: Callable[[Sequence[str]], DocumentOrder]

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the documents in the better order."""
        if not documents:
            return documents
        return self.order([document.page_content for document in documents]).apply(documents)
