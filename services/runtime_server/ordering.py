"""The order of documents of which most is cached."""

from __future__ import annotations

import warnings

from kvboost.documents import DocumentOrder, marked
from kvboost.errors import CacheUnavailableError, EmptyPromptError, FallbackWarning, NamespaceError
from kvboost.ordering import document_token_ids, order_documents
from kvboost.v1 import runtime_pb2 as pb

from .inputs import chat_text, check_roles
from .served import ServedModel

# Something must follow the last document, as the question will: line ends before it are tokenised by what follows.
_AFTER = "x"


def order(served: ServedModel, request: pb.OrderRequest) -> pb.OrderResponse:
    """Look up the best order; the order given where the cache fails.

    Raises
    ------
    InputError
        If a document is empty, or the chat does not fit the model's template.
    """
    if not request.documents:
        return pb.OrderResponse()
    special = request.WhichOneof("before") != "chat"
    text = _prompt(served, request)
    with served.tokenising.room_for(text):
        before, documents = document_token_ids(served.tokenizer, text, request.documents, add_special_tokens=special)
    engine = served.engine
    try:
        found = order_documents(engine.cache, engine.namespace.key, before, documents)
    except (CacheUnavailableError, NamespaceError) as error:
        warnings.warn(f"documents keep their order: {error}", FallbackWarning, stacklevel=2)
        found = DocumentOrder(tuple(range(len(documents))), 0, 0)
    return pb.OrderResponse(
        indices=found.indices, prefix_tokens=found.prefix_tokens, given_prefix_tokens=found.given_prefix_tokens
    )


def _prompt(served: ServedModel, request: pb.OrderRequest) -> str:
    """Return the prompt with the documents in the order given, as far as it is known."""
    block = marked(request.documents) + _AFTER
    if request.WhichOneof("before") != "chat":
        return request.prompt + block
    check_roles(request.chat)
    if not request.chat.messages:
        raise EmptyPromptError("chat.messages is empty; send the message that goes on with the documents")
    turns = pb.ChatMessages()
    turns.CopyFrom(request.chat)
    turns.messages[-1].content += block
    return chat_text(turns, served)
