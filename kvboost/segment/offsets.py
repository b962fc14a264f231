"""From token ids back to text, with the characters that each token stands for.

``generate()`` receives ids only, chat template included, so the text is recovered rather than asked for. A
chunk is never tokenised alone: alone it often comes out as other ids than inside the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from kvboost.errors import PromptError, TokenizerError
from kvboost.segment.token_bytes import TokenBytes

# A character is at most four bytes, so at most four byte-level tokens; more tokens without text than this are
# bytes that never become a character, and a stream that waits for them decodes a growing window every step.
_MAX_PENDING = 16


@dataclass(frozen=True, slots=True)
class TokenText:
    """Text of ``N`` tokens and where each begins.

    Attributes
    ----------
    text
        The decoded text, special tokens included.
    starts
        ``N + 1`` character offsets, never decreasing, from 0 to ``len(text)``. Token ``i`` stands for
        ``text[starts[i]:starts[i + 1]]``. Of the tokens that share one character, the last one has it and the
        others are empty.
    special
        Character spans of the special tokens, in order.
    """

    text: str
    starts: list[int]
    special: tuple[tuple[int, int], ...]


class TokenTexts:
    """Maps token ids of one tokenizer to text.

    Works on a private copy of the fast tokenizer: truncation that a caller has switched on does not matter,
    and neither do other threads.

    Parameters
    ----------
    tokenizer
        A fast Hugging Face tokenizer.

    Raises
    ------
    TokenizerError
        If the tokenizer gives no character offsets.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not getattr(tokenizer, "is_fast", False) or backend is None:
            raise TokenizerError(
                f"tokenizer {type(tokenizer).__name__} gives no character offsets; load a fast one "
                "(AutoTokenizer.from_pretrained(..., use_fast=True))"
            )
        self._backend = Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self._by_bytes = TokenBytes(self._backend)
        self._special_ids = frozenset(i for i, token in added.items() if token.special or _is_marker(token.content))

    def __call__(self, token_ids: Sequence[int]) -> TokenText:
        """Return text and offsets of ``token_ids``.

        By the bytes of each token where these are known. With other tokenizers the ids are decoded and the text is
        encoded again once; where that does not give the same ids (ids that the model generated and the tokenizer
        would not choose), the text is put together token by token.

        Raises
        ------
        PromptError
            If an id is negative or no integer.
        """
        try:
            ids = [index(token) for token in token_ids]
            found = self._by_bytes(ids) or self._otherwise(ids)
        except (OverflowError, TypeError) as error:
            raise PromptError("token_ids must be whole numbers of at least 0; pass the ids of one prompt") from error
        text, starts = found
        special = tuple((starts[i], starts[i + 1]) for i, token in enumerate(ids) if token in self._special_ids)
        return TokenText(text, starts, special)

    def _otherwise(self, ids: list[int]) -> tuple[str, list[int]]:
        # Where tokens' bytes are known and yet are no text, they end amid a character: no encoding gives such ids.
        return (None if self._by_bytes.known else self._by_encoding(ids)) or self._by_decoding(ids)

    def _by_encoding(self, ids: list[int]) -> tuple[str, list[int]] | None:
        text = self._backend.decode(ids, skip_special_tokens=False)
        encoding = self._backend.encode(text, add_special_tokens=False)
        if encoding.ids != ids:
            return None
        # Offsets may leave out a leading space, and tokens that share a character all claim it: a token
        # begins where the one before it ends, unless it says earlier.
        starts = [0]
        starts += [min(end, start) for (_, end), (start, _) in pairwise(encoding.offsets)]
        starts.append(len(text))
        if any(a > b for a, b in pairwise(starts)):
            return None
        return text, starts

    def _by_decoding(self, ids: list[int]) -> tuple[str, list[int]]:
        pieces: list[str] = []
        starts = [0]
        at = pending = 0
        stream = DecodeStream(skip_special_tokens=False)
        for i, token in enumerate(ids):
            piece = self._step(stream, token)
            pending = 0 if piece else pending + 1
            if piece is None or pending > _MAX_PENDING:
                piece = self._backend.decode(ids[i - max(pending, 1) + 1 : i + 1], skip_special_tokens=False)
                stream, pending = DecodeStream(skip_special_tokens=False), 0
            pieces.append(piece)
            at += len(piece)
            starts.append(at)
        return "".join(pieces), starts

    def _step(self, stream: DecodeStream, token: int) -> str | None:
        """Return the text that ``token`` completes, or None where the stream cannot go on."""
        try:
            return stream.step(self._backend, token) or ""
        except (OverflowError, TypeError):
            raise
        except Exception as error:
            # tokenizers has no error type of its own: it raises a bare Exception when a decoder shortens the
            # text that it gave before. Anything else is a fault.
            if type(error) is not Exception:
                raise
            return None


def _is_marker(content: str) -> bool:
    """Whether an added token that is not flagged special still marks structure, like ``<tool_call>``."""
    return len(content) > 2 and content[0] + content[-1] in {"<>", "[]"}
