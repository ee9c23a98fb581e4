"""A publisher of weights in another process: it does nothing else, and never pauses."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import nn

from headrace.memory.atomics import load_acquire
from headrace.memory.segment import SharedSegment
from headrace.weights.flat import FlatParameters
from headrace.weights.store import WeightStore


def numbers(size: int) -> FlatParameters:
    return FlatParameters(nn.Linear(size, 1, bias=False))


def publish_until_told(store_name: str, size: int, capacity: int, stop_name: str) -> None:
    """A publisher process: version v is a vector of v's, one after the other without a pause."""
    torch.set_num_threads(1)
    stop = np.frombuffer(SharedSegment.attach(stop_name).buffer, np.int64)
    store = WeightStore(size, capacity, SharedSegment.attach(store_name), create=False)
    flat, parent = numbers(size), os.getppid()
    while not load_acquire(stop, 0) and os.getppid() == parent:
        flat.vector.fill_(store.version + 1)
        store.publish(flat.published, store.version + 1)
