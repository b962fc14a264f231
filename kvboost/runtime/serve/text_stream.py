"""Text of tokens as they come: no half characters, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HALF = "�"  # what decoders put for bytes that are no whole character (yet)


class TextStream:
    """Decodes one sequence token by token.

    The pieces joined are what decoding the whole sequence gives, up to the first stop text.

    Parameters
    ----------
    decode
        Token ids to text.
    stop
        Texts that end the sequence. Text that may become one is held back.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._decode = decode
        self._stop = tuple(stop)
        self._ids: list[int] = []
        # Tokens [_context, _read) are decoded along with new ones: some decoders treat the first token differently.
        self._context = self._read = 0
        self._held = ""

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that it completes."""
        if self.stopped:
            return ""
        self._ids.append(token_id)
        text = self._undelivered()
        if not text or text.endswith(_HALF):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return self._release(text)

    def finish(self) -> str:
        """Return what was held back, half a character included; the sequence is over."""
        if self.stopped:
            return ""
        text = self._held + self._undelivered()
        self._held, self._read = "", len(self._ids)
        return text

    def _undelivered(self) -> str:
        known = self._decode(self._ids[self._context : self._read])
        return self._decode(self._ids[self._context :])[len(known) :]

    def _release(self, text: str) -> str:
        """Return what of the held and the new ``text`` cannot belong to a stop text."""
        self._held += text
        found = min((at for at in map(self._held.find, self._stop) if at >= 0), default=None)
        self.stopped = found is not None
        end = len(self._held) - self._suspect() if found is None else found
        free, self._held = self._held[:end], self._held[end:]
        return free

    def _suspect(self) -> int:
        """Length of the longest end of the held text that a stop text begins with."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if self._held.endswith(stop[:n])),
            default=0,
        )
