"""The device on which the learner computes: cpu, or another one that torch knows (cuda, cuda:1, mps).

    learner_device="cuda" --device_named--> torch.device

The learner's tensors follow the flat vector's device. Actors act elsewhere, with the published copy.
"""

from __future__ import annotations

import torch

from headrace.errors import UsageError


def device_named(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it computes nothing")
        if device.type != "cpu":
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0].partition(". ")[0]  # torch goes on for a page
        raise UsageError(
            f"device (learner_device): expected cpu, or a device that torch has here, got {name!r}: {why}; "
            f"use device=cpu (--device cpu), also to load or resume a run that had a GPU"
        ) from error
    return device
