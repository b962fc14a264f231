"""Cuts prompts into chunks: text boundaries, token offsets, packing."""

from kvboost.extras import require

require("runtime", "kvboost.segment")

from kvboost.segment.pack import Sizes
from kvboost.segment.segmenter import Segmenter

__all__ = ["Segmenter", "Sizes"]
