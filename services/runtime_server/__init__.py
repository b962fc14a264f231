"""The runtime service: a boosted model behind gRPC, one request at a time."""

from .served import ServedModel
from .servicer import SERVICE_NAME, RuntimeServicer

__all__ = ["SERVICE_NAME", "RuntimeServicer", "ServedModel"]
