"""The characters that byte-level vocabularies write bytes with."""

from __future__ import annotations

from collections.abc import Mapping


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character stands for in byte-level vocabularies.

    Printable bytes stand for themselves and the others for the characters from U+0100 on, in order (GPT-2's encoder,
    github.com/openai/gpt-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF: Mapping[str, int] = _byte_alphabet()
