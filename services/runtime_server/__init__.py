"""The runtime service: a boosted model behind gRPC, several requests at once."""

from .served import ServedModel
from .servicer import SERVICE_NAME, RuntimeServicer

__all__ = ["SERVICE_NAME", "RuntimeServicer", "ServedModel"]
