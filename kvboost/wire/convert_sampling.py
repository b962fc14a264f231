"""How the next token is chosen, to a message of ``kvboost.v1`` and back."""

from __future__ import annotations

from kvboost.sampling import Sampling
from kvboost.v1 import runtime_pb2 as pb


def sampling_to_proto(sampling: Sampling) -> pb.Sampling:
    """Return the message for ``sampling``."""
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        stop=sampling.stop,
        repetition_penalty=sampling.repetition_penalty,
    )


def sampling_from_proto(message: pb.Sampling) -> Sampling:
    """Return the sampling of ``message``; a value out of range is refused."""
    return Sampling(
        temperature=message.temperature if message.HasField("temperature") else None,
        top_p=message.top_p if message.HasField("top_p") else None,
        top_k=message.top_k if message.HasField("top_k") else None,
        seed=message.seed if message.HasField("seed") else None,
        stop=tuple(message.stop),
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else None,
    )
