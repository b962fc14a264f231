"""Text of tokens as they come: no half characters, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HALF = "�"  # what decoders put for bytes that are no whole character (yet)
# Tokens that may wait for the rest of a character. One has four bytes at most; what waits longer is broken.
_MOST_WAITING = 16
_BYTES_OF_CHARACTER = 4
# Tokens whose text is known, and that are decoded again with each new one before a later one takes their place.
_MOST_CONTEXT = 8


class TextStream:
    """Decodes one sequence token by token, in time linear in its length and in that of the stop texts.

    There is one call of ``decode`` for each token, of a few tokens, and now and then another one.

    The pieces joined are what decoding the whole sequence gives, up to the first stop text: the one that is complete
    first, and of those that end together the longest. How characters are spread over tokens makes no difference.

    Parameters
    ----------
    decode
        Token ids to text.
    stop
        Texts that end the sequence. Text that may become one is held back.

    Attributes
    ----------
    stopped
        Whether a stop text was found.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._decode = decode
        self._stops = [_StopText(text) for text in stop]
        self._ids: list[int] = []
        # Tokens [_context, _read) are decoded along with new ones: some decoders treat the first token differently.
        self._context = self._read = 0
        self._known = ""  # their text
        self._taken = 0  # characters that were taken already of those behind token _read
        self._held = ""

    @property
    def may_stop(self) -> bool:
        """Whether its text may end the sequence."""
        return bool(self._stops)

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that it completes."""
        if self.stopped:
            return ""
        self._ids.append(token_id)
        text = self._undelivered()
        whole = text.rstrip(_HALF)
        fresh = whole[self._taken :]
        self._taken = max(self._taken, len(whole))
        if text and whole == text:
            self._advance(len(self._ids), text)
        elif len(self._ids) - self._read > _MOST_WAITING:
            fresh += self._give_up_waiting(text)
        return self._release(fresh)

    def finish(self) -> str:
        """Return what was held back, half a character included; the sequence is over."""
        if self.stopped:
            return ""
        text = self._release(self._undelivered()[self._taken :])
        if not self.stopped:
            text, self._held = text + self._held, ""
        self._advance(len(self._ids))
        return text

    def _undelivered(self) -> str:
        return self._decode(self._ids[self._context :])[len(self._known) :]

    def _advance(self, read: int, undelivered: str | None = None) -> None:
        """Note that the text of all tokens before ``read`` is known; ``undelivered`` is that of the newest of them."""
        if undelivered is None or read - self._context > _MOST_CONTEXT:
            self._context, self._read = self._read, read
            self._known = self._decode(self._ids[self._context : read])
        else:
            self._read, self._known = read, self._known + undelivered
        self._taken = 0

    def _give_up_waiting(self, text: str) -> str:
        """Return what of ``text`` no later token can change, although no whole character ends it."""
        whole = self._decode(self._ids[self._context :])
        known = len(whole) - len(text)
        for read in range(len(self._ids) - _BYTES_OF_CHARACTER, len(self._ids) - 2 * _BYTES_OF_CHARACTER, -1):
            before, after = self._decode(self._ids[self._context : read]), self._decode(self._ids[read:])
            if before + after == whole and len(before) >= known + self._taken:
                fresh = before[known + self._taken :]
                self._advance(read)
                return fresh
        return ""

    def _release(self, text: str) -> str:
        """Return what of the held and the new ``text`` cannot belong to a stop text."""
        start = len(self._held)
        self._held += text
        for at in range(start, len(self._held)):
            ended = [len(stop.text) for stop in self._stops if stop.ends_with(self._held[at])]
            if ended:
                self.stopped = True
                free, self._held = self._held[: at + 1 - max(ended)], ""
                return free
        end = len(self._held) - max((stop.matched for stop in self._stops), default=0)
        free, self._held = self._held[:end], self._held[end:]
        return free


class _StopText:
    """One stop text, and how much of it the text so far ends with (Knuth, Morris, Pratt, 1977).

    Attributes
    ----------
    matched
        Length of the longest end of the text so far that ``text`` begins with.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = [0] * (len(text) + 1)  # by length of a match: the next shorter one that could go on
        for i in range(1, len(text)):
            self._shorter[i + 1] = self._step(self._shorter[i], text[i])

    def ends_with(self, character: str) -> bool:
        """Take the next character; return whether the text now ends with this one."""
        self.matched = self._step(self.matched, character)
        return self.matched == len(self.text)

    def _step(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._shorter[matched]
        return matched + (self.text[matched] == character)
