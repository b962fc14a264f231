"""What differs between the devices that a model may lie on."""

from __future__ import annotations

import torch


def synchronize(device: torch.device) -> None:
    """Return once ``device`` has done what was asked of it: it works behind Python's back, a CPU does not.

    Whoever reads a clock or hands memory on asks for this first.
    """
    if device.type not in ("cpu", "meta"):  # a layer that is offloaded lies nowhere
        torch.accelerator.synchronize(device)


def angle_device(device: torch.device) -> torch.device:
    """Return where float64 angles for ``device`` are computed: on the CPU where the device has no float64."""
    return torch.device("cpu") if device.type == "mps" else device
