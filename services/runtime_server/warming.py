"""Documents into the cache before the first question about them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import grpc

from kvboost.errors import CacheUnavailableError, InputError, SupportError
from kvboost.policy import ReusePolicy
from kvboost.published import PublishedCache
from kvboost.runtime.batching import Batch, BatchRequest
from kvboost.runtime.serve.text_stream import TextStream
from kvboost.sampling import GREEDY
from kvboost.types import Tier
from kvboost.v1 import runtime_pb2 as pb

from .caller import Caller
from .served import ServedModel

_BREAK = "\n\n"
# K/V behind approximately reused tokens would themselves be approximate, so nothing but a lossless prefix is reused.
_LOSSLESS = ReusePolicy(tiers=(Tier.PREFIX,), audit_rate=0.0)
_NOTHING = ReusePolicy(tiers=(), audit_rate=0.0)


def warm(
    served: ServedModel, batch: Batch, request: pb.WarmRequest, context: grpc.ServicerContext
) -> Iterator[pb.WarmReceipt]:
    """Prefill each document behind the prefix and store it; a receipt for each, in order.

    The K/V are those of an ordinary prefill of prefix and document alone: no user's prompt is in them. Documents
    take turns with the requests of other callers.

    Raises
    ------
    InputError
        If a document is empty or does not fit into the model's context.
    SupportError
        If documents shall be published, and this runtime may not, or reads none.
    """
    since_s = time.perf_counter()
    namespace = _published(served) if request.publish else ""
    # What is published must hold nothing that a tenant's own request computed, so nothing is reused for it.
    policy = _NOTHING if request.publish else _LOSSLESS
    prompts = [_token_ids(served, request.prefix, text, i) for i, text in enumerate(request.documents)]
    if not prompts:
        raise InputError("documents is empty; send at least one text")
    for i, token_ids in enumerate(prompts):
        caller = Caller(TextStream(served.decode))
        if not context.add_callback(caller.leave):
            return
        asked = BatchRequest(token_ids, 0, GREEDY, time.perf_counter(), policy=policy, namespace=namespace)
        batch.submit(asked, caller)
        for _ in caller.events():
            pass  # no tokens are asked for; an error is raised
        receipt = _receipt(i, caller)
        if receipt is None:
            return
        now_s = time.perf_counter()
        receipt.seconds, since_s = now_s - since_s, now_s
        yield receipt


def _published(served: ServedModel) -> str:
    """Return the namespace of published documents."""
    if not served.publishes:
        raise SupportError("publish is refused here; set runtime.publishes where callers may publish for all tenants")
    cache = served.engine.cache
    key = cache.published_key(served.engine.namespace.key) if isinstance(cache, PublishedCache) else None
    if key is None:
        raise SupportError("publish needs a name for what is published; set cache.published")
    return key


def _receipt(index: int, caller: Caller) -> pb.WarmReceipt | None:
    """Wait until the document is stored; None for a caller that left."""
    if caller.ended is None:
        return None
    report, stored = caller.ended.answer.report, caller.ended.stored
    if stored is None:
        raise CacheUnavailableError(f"documents[{index}] was not stored; ask the runtime's log why")
    try:
        put = stored.result()  # ends: every put has a deadline
    except CancelledError:
        raise CacheUnavailableError(f"documents[{index}] was not stored: the runtime is shutting down") from None
    if report.fallback is not None:
        raise CacheUnavailableError(f"documents[{index}] met a cache that failed: {report.fallback}")
    return pb.WarmReceipt(
        index=index,
        tokens=report.prompt_tokens,
        reused_tokens=report.reused_tokens,
        stored_chunks=put.stored,
        refused_chunks=put.over_variants + put.too_large,
    )


def _token_ids(served: ServedModel, prefix: str, document: str, index: int) -> tuple[int, ...]:
    """Return prefix and document as they stand in a prompt: a paragraph of its own, with the blank line after it."""
    text = document.strip()
    if not text:
        raise InputError(f"documents[{index}] is empty; leave it out")
    before = f"{prefix.rstrip()}{_BREAK}" if prefix.strip() else ""
    text = f"{before}{text}{_BREAK}"
    return tuple(served.tokenising.prompt_ids(text, f"documents[{index}]", "split it"))
