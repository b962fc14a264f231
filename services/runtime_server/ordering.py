"""The order of documents of which most is cached."""

from __future__ import annotations

import warnings
from itertools import pairwise

from kvboost.documents import SEPARATOR, DocumentOrder, marked
from kvboost.errors import CacheUnavailableError, FallbackWarning, InputError, NamespaceError, PromptError
from kvboost.ordering import order_documents
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
    block = marked(request.documents)
    if not request.documents:
        return pb.OrderResponse()
    before, documents = _token_ids(served, request, block)
    preparer = served.engine.preparer
    try:
        found = order_documents(preparer.cache, preparer.namespace.key, before, documents)
    except (CacheUnavailableError, NamespaceError) as error:
        warnings.warn(f"documents keep their order: {error}", FallbackWarning, stacklevel=2)
        found = DocumentOrder(tuple(range(len(documents))), 0, 0)
    return pb.OrderResponse(
        indices=found.indices, prefix_tokens=found.prefix_tokens, given_prefix_tokens=found.given_prefix_tokens
    )


def _token_ids(served: ServedModel, request: pb.OrderRequest, block: str) -> tuple[list[int], list[list[int]]]:
    """Return the tokens before the documents and those of each with what separates it from the next.

    The prompt is tokenised in one piece, in the order given; that its pieces may then change places is what the
    separators are for.
    """
    chat = request.WhichOneof("before") == "chat"
    if chat:
        check_roles(request.chat)
        if not request.chat.messages:
            raise PromptError("chat.messages is empty; send the message that goes on with the documents")
        turns = pb.ChatMessages()
        turns.CopyFrom(request.chat)
        turns.messages[-1].content += block + _AFTER
        text = chat_text(turns, served)
    else:
        text = request.prompt + block + _AFTER
    encoded = served.tokenizer(text, add_special_tokens=not chat)
    at = text.rfind(block)
    if at == -1:
        raise InputError("before.chat does not fit: the model's chat template changes what its last message says")
    at += len(marked([]))
    ends = [at]
    for document in request.documents:
        at += len(document.strip()) + len(f"\n\n{SEPARATOR}\n\n")
        ends.append(at)
    cuts = [int(encoded.char_to_token(end)) for end in ends]
    ids = list(encoded["input_ids"])
    return ids[: cuts[0]], [ids[a:b] for a, b in pairwise(cuts)]
