"""One caller of the runtime service: what the batch tells it, and whether it is still there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

from kvboost.runtime.batching import Ended
from kvboost.runtime.serve.logprobs import Logprobs
from kvboost.runtime.serve.text_stream import TextStream
from kvboost.v1 import runtime_pb2 as pb

from .messages import token_event
from .token_bytes import TokenLogprobs

_END = object()


class Caller:
    """Takes tokens on the batch's thread, and hands them on as events in the thread of the call.

    The text is made in the thread of the call too: the batch's thread has the next token to compute. Only an answer
    that a stop text may end is decoded there.

    Parameters
    ----------
    logprobs
        Writes log-probabilities; None for an answer without them.

    Attributes
    ----------
    text
        The answer's text; it finds stop texts.
    ended
        The whole answer, once :meth:`events` has come to its end; None for a caller that left.
    """

    def __init__(self, text: TextStream, logprobs: TokenLogprobs | None = None) -> None:
        self.text = text
        self.ended: Ended | None = None
        self._events: SimpleQueue[object] = SimpleQueue()
        self._gone = threading.Event()
        self._logprobs = logprobs
        self._newest: Logprobs | None = None

    def gone(self) -> bool:
        """Return whether the caller has gone, or its deadline has passed."""
        return self._gone.is_set()

    def on_logprobs(self, logprobs: Logprobs) -> None:
        """Keep the log-probabilities of the token that comes next."""
        self._newest = logprobs

    def on_token(self, token_id: int) -> bool:
        """Send a token; return True after a stop text."""
        text = self.text.push(token_id) if self.text.may_stop else None
        self._events.put((token_id, text, self._newest))
        return self.text.stopped

    def on_end(self, ended: Ended) -> None:
        """Send the end."""
        self.ended = ended
        self._events.put(_END)

    def on_error(self, error: BaseException) -> None:
        """Send an error."""
        self._events.put(error)

    def leave(self) -> None:
        """Note that the caller has gone, and stop waiting for events."""
        self._gone.set()
        self._events.put(_END)

    def events(self) -> Iterator[pb.GenerateResponse]:
        """Yield the tokens until the end; an error is raised."""
        while True:
            event = self._events.get()
            if event is _END:
                return
            if isinstance(event, BaseException):
                raise event
            assert isinstance(event, tuple)
            token_id, text, logprobs = event
            message = token_event(token_id, self.text.push(token_id) if text is None else text)
            if self._logprobs is not None and logprobs is not None:
                self._logprobs.write(logprobs, message.token)
            yield message
