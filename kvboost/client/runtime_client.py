"""A model runtime behind gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from typing_extensions import TypedDict, Unpack

from kvboost.client.bounds import check_size
from kvboost.client.convert_runtime import (
    Prompt,
    event_from_proto,
    order_from_proto,
    order_to_proto,
    prompt_to_proto,
    runtime_info_from_proto,
    warm_receipt_from_proto,
)
from kvboost.client.runtime_types import Answer, ChatMessage, Finish, RuntimeInfo, TokenPiece, WarmReceipt
from kvboost.client.transport import CHANNEL_OPTIONS
from kvboost.documents import DocumentOrder
from kvboost.errors import RuntimeUnavailableError
from kvboost.origin import Origin
from kvboost.sampling import Sampling
from kvboost.texts import check_text, check_texts
from kvboost.v1 import runtime_pb2 as pb
from kvboost.v1 import runtime_pb2_grpc as pb_grpc
from kvboost.wire.address import parse_address
from kvboost.wire.checks import check_count, check_seconds
from kvboost.wire.convert_sampling import sampling_to_proto
from kvboost.wire.status import error_of
from kvboost.wire.tracing import traced_channel

WARM_CALL_BYTES = 1 << 20
_ANY_ANSWER = ("grpc.max_receive_message_length", -1)  # the texts of all tokens of a long prompt take more than 4 MiB


class GenerateOptions(TypedDict, total=False):
    """Arguments of :meth:`RuntimeClient.generate` and :meth:`RuntimeClient.answer`.

    Attributes
    ----------
    max_new_tokens
        Answer tokens at most; 0 for the runtime's default.
    sampling
        How tokens are chosen; the model's own defaults without it.
    score_against_full
        Answer greedily, and compare with full prefill.
    skip_cache
        Compute the whole prompt with the plain model; nothing is looked up, nothing stored.
    wait_for_store
        End only after the new chunks were put into the cache.
    with_token_texts
        Return the text of every prompt token.
    logprobs
        Return the log-probability of each answer token and of so many likeliest ones, at most 20; None for none.
    timeout_s
        Deadline of the whole answer; None waits for ever.
    """

    max_new_tokens: int
    sampling: Sampling | None
    score_against_full: bool
    skip_cache: bool
    wait_for_store: bool
    with_token_texts: bool
    logprobs: int | None
    timeout_s: float | None


class RuntimeClient:
    """A model runtime in another process. Connects lazily; safe to use from several threads, not across ``fork()``.

    Every call may raise what the runtime answers, or :class:`~kvboost.errors.RuntimeUnavailableError`.

    Parameters
    ----------
    address
        ``host:port`` or ``unix:/path``.
    timeout_s
        Deadline of :meth:`describe` and :meth:`order`.

    Raises
    ------
    ConfigError
        If ``address`` is neither form.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self.address = str(parse_address(address))
        self._timeout_s = check_seconds(timeout_s, "timeout_s")
        self._closed = False
        self._origin = Origin()
        self._channel = traced_channel(grpc.insecure_channel(self.address, options=(*CHANNEL_OPTIONS, _ANY_ANSWER)))
        stub: Any = pb_grpc.RuntimeServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._describe: Callable[..., pb.DescribeRuntimeResponse] = stub.Describe
        self._generate: Callable[..., Any] = stub.Generate
        self._warm: Callable[..., Any] = stub.Warm
        self._order: Callable[..., pb.OrderResponse] = stub.Order

    def describe(self) -> RuntimeInfo:
        """Ask which model runs there, what can be reused with it, and its counters."""
        with self._failures():
            return runtime_info_from_proto(self._describe(pb.DescribeRuntimeRequest(), timeout=self._timeout_s))

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Iterator[TokenPiece | Finish]:
        """Yield the answer's tokens as they come, then a :class:`Finish`.

        The runtime stops generating when the caller closes the iterator.

        Parameters
        ----------
        prompt
            A text, a list of :class:`ChatMessage`, or a list of token ids.
        **options
            See :class:`GenerateOptions`.
        """
        request, timeout_s = _request(prompt, options)
        with self._failures():
            call = self._generate(request, timeout=timeout_s)
            try:
                for event in call:
                    yield event_from_proto(event)
            finally:
                call.cancel()

    def answer(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
        """Return the whole answer; parameters as of :meth:`generate`."""
        pieces: list[TokenPiece] = []
        finish: Finish | None = None
        for event in self.generate(prompt, **options):
            if isinstance(event, Finish):
                finish = event
            else:
                pieces.append(event)
        if finish is None:
            raise RuntimeUnavailableError(f"the answer of {self.address} broke off after {len(pieces)} tokens")
        return Answer(
            text="".join(piece.text for piece in pieces) + finish.text,
            token_ids=tuple(piece.id for piece in pieces),
            reason=finish.reason,
            report=finish.report,
            score=finish.score,
            token_texts=finish.token_texts,
        )

    def warm(
        self,
        documents: Sequence[str],
        *,
        prefix: str = "",
        publish: bool = False,
        timeout_s: float | None = None,
        on_receipt: Callable[[WarmReceipt], None] | None = None,
    ) -> tuple[WarmReceipt, ...]:
        """Put documents into the cache before the first question about them; return a receipt for each.

        Parameters
        ----------
        documents
            Texts, each cached for itself, so that it is found in any order of documents.
        prefix
            Text that each document stands behind, such as the system prompt that requests begin with.
        publish
            Put them where every tenant that reads the same published documents finds them.
        timeout_s
            Deadline for each MiB of text; None waits for ever.
        on_receipt
            Called as soon as a document is stored, to show how far it is.

        Raises
        ------
        InputError
            If a document is empty or longer than the model's context, or the prefix leaves no room for it.
        SupportError
            If documents shall be published, and the runtime may not.
        """
        check_text(prefix, "prefix")
        check_texts(documents, "documents")
        requests = [pb.WarmRequest(documents=part, prefix=prefix, publish=publish) for part in _parts(documents)]
        first = 0
        for request in requests:
            check_size(request, f"documents[{first}] with its prefix", "split it")
            first += len(request.documents)
        limit_s = _limit(timeout_s)
        receipts: list[WarmReceipt] = []
        for request in requests:
            first = len(receipts)
            with self._failures():
                for message in self._warm(request, timeout=limit_s):
                    receipts.append(warm_receipt_from_proto(message, first))
                    if on_receipt is not None:
                        on_receipt(receipts[-1])
        return tuple(receipts)

    def order(self, documents: Sequence[str], *, before: str | Sequence[ChatMessage] = "") -> DocumentOrder:
        """Return in which order documents should stand for the longest prefix of the prompt to be cached, losslessly.

        For prompts in which the order is free. Documents that are not part of that prefix keep their order, and
        where no other order is better, all do. Nothing is computed or stored; a look-up counts in the cache's figures.

        Parameters
        ----------
        documents
            Texts, in order of relevance. In the prompt they must stand as :func:`kvboost.documents.marked` puts them.
        before
            What stands before them: a text, or a chat whose last message goes on with the documents.

        Raises
        ------
        InputError
            If a document is empty, or the chat does not fit the model.
        """
        request = order_to_proto(documents, before)
        check_size(request, "documents and what stands before them", "send fewer")
        with self._failures():
            return order_from_proto(self._order(request, timeout=self._timeout_s))

    def close(self) -> None:
        """Close the connection; an answer under way ends, a later call fails."""
        self._closed = True
        if not self._origin.refusal("the channel"):
            self._channel.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what gRPC raises into typed errors; a forked child is told at once, where gRPC would wait for ever."""
        if refusal := self._origin.refusal(f"the client of {self.address}"):
            raise RuntimeUnavailableError(refusal)
        try:
            yield
        except grpc.RpcError as failure:
            raise error_of(failure, self.address, RuntimeUnavailableError) from None
        except ValueError:
            if not self._closed:
                raise
            raise RuntimeUnavailableError(f"the client of {self.address} was closed; make a new one") from None


def _parts(documents: Sequence[str]) -> Iterator[list[str]]:
    """Yield the documents in order, in lists of about a MiB: one message holds 4 MiB at most."""
    part: list[str] = []
    room = WARM_CALL_BYTES
    for document in documents:
        size = len(document.encode())
        if part and size > room:
            yield part
            part, room = [], WARM_CALL_BYTES
        part.append(document)
        room -= size
    if part:
        yield part


def _request(prompt: Prompt, options: GenerateOptions) -> tuple[pb.GenerateRequest, float | None]:
    """Return the message, and the deadline of the call."""
    unknown = options.keys() - GenerateOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown arguments {', '.join(sorted(unknown))}")
    sampling = options.get("sampling")
    logprobs = options.get("logprobs")
    if logprobs is not None:
        check_count(logprobs, "logprobs")
    request = pb.GenerateRequest(
        max_new_tokens=check_count(options.get("max_new_tokens", 0), "max_new_tokens"),
        sampling=None if sampling is None else sampling_to_proto(sampling),
        score_against_full=options.get("score_against_full", False),
        skip_cache=options.get("skip_cache", False),
        wait_for_store=options.get("wait_for_store", False),
        with_token_texts=options.get("with_token_texts", False),
        logprobs=logprobs,
    )
    prompt_to_proto(prompt, request)
    check_size(request, "the prompt", "shorten it")
    return request, _limit(options.get("timeout_s"))


def _limit(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else check_seconds(timeout_s, "timeout_s")
