"""The text and the bytes of single tokens."""

from __future__ import annotations

import re
from collections.abc import Collection

from kvboost.runtime.serve.logprobs import Logprobs
from kvboost.v1 import runtime_pb2 as pb

from .byte_alphabet import BYTE_OF
from .served import ServedModel

_HALF = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenLogprobs:
    """Writes log-probabilities with the tokens' texts; one for each answer, since it remembers the texts.

    Parameters
    ----------
    ends
        Tokens that end an answer: they are no part of its text and go without.
    """

    def __init__(self, served: ServedModel, ends: Collection[int]) -> None:
        self._served = served
        self._ends = ends
        self._known: dict[int, tuple[str, bytes | None]] = {}

    def write(self, logprobs: Logprobs, piece: pb.TokenPiece) -> None:
        """Add ``logprobs`` to the token that they belong to."""
        if piece.id in self._ends:
            return
        piece.logprob.CopyFrom(self._message(piece.id, logprobs.chosen))
        piece.top_logprobs.extend(self._message(token, value) for token, value in logprobs.top)

    def _message(self, token_id: int, value: float) -> pb.TokenLogprob:
        if token_id not in self._known:
            self._known[token_id] = token_bytes(self._served, token_id)
        text, utf8 = self._known[token_id]
        return pb.TokenLogprob(id=token_id, text=text, utf8=utf8, logprob=value)


def token_bytes(served: ServedModel, token_id: int) -> tuple[str, bytes | None]:
    """Return a token's text by itself and its UTF-8 bytes; None where the tokenizer does not tell them."""
    raw = str(served.tokenizer.convert_ids_to_tokens(token_id))
    if (fallback := _BYTE.fullmatch(raw)) is not None:
        utf8 = bytes([int(fallback[1], 16)])
        return utf8.decode(errors="replace"), utf8
    # Behind itself, not alone: some decoders drop the space that an answer begins with.
    text = served.decode_all([token_id] * 2)[len(served.decode_all([token_id])) :]
    if _HALF not in text:
        return text, text.encode()
    utf8 = bytes(BYTE_OF.get(char, 0) for char in raw)
    known = all(char in BYTE_OF for char in raw) and utf8.decode(errors="replace") == text
    return text, utf8 if known else None
