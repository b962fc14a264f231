"""Log-probabilities in OpenAI's two forms, that of chats and that of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvboost.client.runtime_types import TokenLogprob, TokenPiece


class LogprobsForm:
    """Collects the log-probabilities of tokens until text goes out that they belong to.

    Parameters
    ----------
    chat
        Form of a chat: bytes and a list of candidates. Else that of completions: parallel lists, with offsets in
        the answer's text.
    """

    def __init__(self, chat: bool) -> None:
        self._chat = chat
        self._waiting: list[tuple[TokenPiece, TokenLogprob, int]] = []
        self._length = 0

    def add(self, piece: TokenPiece) -> None:
        """Take a token; one without log-probabilities only moves the offset.

        The offset is where the answer's text ended when the token was chosen: tokens of one character share it.
        """
        if piece.logprob is not None:
            self._waiting.append((piece, piece.logprob, self._length))
        self._length += len(piece.text)

    def take(self) -> dict[str, Any] | None:
        """Return what was collected since the last call; None for nothing."""
        taken, self._waiting = self._waiting, []
        if not taken:
            return None
        if self._chat:
            return {"content": [_of_chat(piece, chosen) for piece, chosen, _ in taken], "refusal": None}
        return {
            "tokens": [chosen.text for _, chosen, _ in taken],
            "token_logprobs": [chosen.logprob for _, chosen, _ in taken],
            "top_logprobs": [_by_text(piece.top_logprobs, chosen) for piece, chosen, _ in taken],
            "text_offset": [offset for _, _, offset in taken],
        }


def _of_chat(piece: TokenPiece, chosen: TokenLogprob) -> dict[str, Any]:
    return _one(chosen) | {"top_logprobs": [_one(token) for token in piece.top_logprobs]}


def _one(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": None if token.utf8 is None else list(token.utf8),
    }


def _by_text(top: Sequence[TokenLogprob], chosen: TokenLogprob) -> dict[str, float]:
    """Return log-probabilities by text, the chosen token's among them; of tokens that read the same the likeliest."""
    found: dict[str, float] = {}
    for token in (*top, chosen):
        found.setdefault(token.text, token.logprob)
    return found
