"""How many tokens a text has at least, by its bytes: known without tokenising it, which takes 160 times its size.

A token of a byte-level vocabulary stands for the bytes that its entry spells, so a text has no fewer tokens than its
bytes hold of the longest entry's. That is certain only where nothing on the way to the vocabulary drops text; where
anything might, there is no bound, and the tokenizer itself decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase

from .byte_alphabet import BYTE_OF

NFC_SHRINKS = 4
"""Composing characters leaves at least this part of their bytes (the worst there is, U+0390, has two of seven)."""


@dataclass(frozen=True, slots=True)
class ByteBound:
    """A text's bytes, less those that the vocabulary does not know, and how many of them a token stands for at most."""

    longest_token: int
    unknown: bytes

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that ``text`` has in any case."""
        return len(text.encode(errors="replace").translate(None, self.unknown)) // self.longest_token


def byte_bound(tokenizer: PreTrainedTokenizerBase) -> ByteBound | None:
    """Return the bound for a tokenizer's texts; None where none is certain."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer) or not isinstance(backend.model, BPE):
        return None
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None  # such a token takes all the white space beside it
    cutters, normalizers = _parts(backend.pre_tokenizer, "pretokenizers"), _parts(backend.normalizer, "normalizers")
    if not all(map(_keeps_all, cutters)) or not any(part["type"] == "ByteLevel" for part in cutters):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    unknown = bytes(byte for char, byte in BYTE_OF.items() if char not in vocabulary)
    longest = max(map(len, (*vocabulary, *(token.content.encode() for token in added))))
    if not normalizers:
        return ByteBound(longest, unknown)
    if any(part["type"] != "NFC" for part in normalizers) or not set(unknown) <= _NEVER_IN_UTF8:
        return None
    return ByteBound(longest * NFC_SHRINKS, unknown)


def _parts(component: Any, name: str) -> list[dict[str, Any]]:
    """Return what a normalizer or pre-tokenizer is made of, in order."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    return list(state[name]) if state["type"] == "Sequence" else [state]


def _keeps_all(cutter: dict[str, Any]) -> bool:
    """Return whether a pre-tokenizer only cuts: what it is given comes out again."""
    if cutter["type"] == "Split":
        return str(cutter["behavior"]) != "Removed"
    return cutter["type"] in ("ByteLevel", "Digits")


_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
