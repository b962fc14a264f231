"""Callers' texts to token ids: refused before the work where they cannot fit, and the large ones a few at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from transformers import PreTrainedTokenizerBase

from kvboost.errors import PromptTooLongError

from .prompt_bytes import byte_bound

LARGE_CHARS = 64 << 10
"""A text of this size takes the tokenizer about 10 MiB; smaller ones need not wait for one another."""
LARGE_AT_ONCE = 2
"""A text of 4 MiB, the largest that a request holds, takes 600 MiB while it is tokenised."""


class Tokenising:
    """The tokenizer as callers may use it.

    Parameters
    ----------
    context_tokens
        The longest prompt and answer together; 0 for no limit.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._bound = byte_bound(tokenizer)
        self._places = threading.BoundedSemaphore(LARGE_AT_ONCE)

    def prompt_ids(self, text: str, what: str, remedy: str, *, special: bool = True) -> list[int]:
        """Return the token ids of a prompt that leaves room for an answer.

        Parameters
        ----------
        what, remedy
            For the sentence about a text that is too long: what it is, and what to do about it.
        special
            Whether the tokenizer adds its special tokens; a chat template writes its own.

        Raises
        ------
        PromptTooLongError
        """
        if self._bound is not None:
            self.check_length(self._bound.least_tokens(text), what, remedy, "at least ")
        with self.room_for(text):
            ids = list(self._tokenizer(text, add_special_tokens=special)["input_ids"])
        self.check_length(len(ids), what, remedy)
        return ids

    def check_length(self, tokens: int, what: str, remedy: str, known: str = "") -> None:
        """Refuse a prompt that leaves no room for an answer; ``known`` stands before the number of its tokens.

        Raises
        ------
        PromptTooLongError
        """
        limit = self._context_tokens
        if limit and tokens >= limit:
            raise PromptTooLongError(
                f"{what} has {known}{tokens} tokens, the model's context holds {limit}, the answer included; {remedy}"
            )

    @contextmanager
    def room_for(self, text: str) -> Iterator[None]:
        """Wait until ``text`` may be tokenised; hold its place meanwhile."""
        with self._places if len(text) > LARGE_CHARS else nullcontext():
            yield
