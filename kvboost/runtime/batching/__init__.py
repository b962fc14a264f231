"""Several requests at once on one model: continuous batching.

New requests join between two decode steps, rows have different lengths, and a finished row leaves at once.
"""

from kvboost.runtime.batching.batch import Batch
from kvboost.runtime.batching.request import BatchRequest, BatchState, Ended, Listener
from kvboost.runtime.batching.row import with_stages

__all__ = ["Batch", "BatchRequest", "BatchState", "Ended", "Listener", "with_stages"]
