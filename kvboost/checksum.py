"""The corruption check on K/V bytes.

xxh3 finds accidental damage at memory speed; it is no defence against forgery, and identity is never decided
by it (that is done by cryptographic hashes and by token ids).
"""

from __future__ import annotations

import xxhash
from typing_extensions import Buffer


def checksum(data: Buffer) -> int:
    """Return the 64-bit xxh3 of ``data``."""
    return xxhash.xxh3_64_intdigest(data)
