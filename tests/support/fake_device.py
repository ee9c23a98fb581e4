"""The learner on a device that is not there: torch's fake tensors have a device and no numbers, and refuse mixtures.

    python -m support.fake_device --> JSON: for every case of CASES how many readings there were, or what was refused

A torch without CUDA can't make fake tensors of `cuda` that autograd takes, so the device is one that torch lets Python
register. Numbers that are read come back as ones; numpy() is refused but on the CPU, as with CUDA's tensors. Runs in a
process of its own, since a registered device stays.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorDeviceMismatchError, FakeTensorMode
from torch.utils import backend_registration

from headrace.build import build_algorithm
from headrace.launch.rehearsal import _made_up
from headrace.learning import assembly, device_adam, ppo
from headrace.learning.algorithm import Moment
from headrace.learning.config import ImpalaConfig, PpoConfig
from headrace.memory.spaces import Box, Dict, Discrete, MultiDiscrete, ObservationSpace, Space
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import build_policy
from headrace.weights.flat import FlatParameters
from headrace.weights.saving import load, snapshot
from headrace.weights.store import Weights, WeightStore

NAME = "fakegpu"
READINGS: dict[str, Any] = {"tolist": lambda tensor: [1.0] * len(tensor), "__float__": lambda tensor: 1.0}
CASES = [
    ("MlpPolicy", "ppo", ""), ("CnnPolicy", "impala", ""), ("MultiInputPolicy", "ppo", ""),
    *(("MultiInputPolicy", "ppo", mutation) for mutation in ("rows", "moments", "completion", "choices")),
]  # fmt: skip
"""Policy, algorithm, and which tensor stays on the CPU."""
VECTOR, IMAGE = Box((3,), "float32", (-1.0,), (1.0,)), Box((36, 36, 1), "uint8", (0.0,), (255.0,))
CHOICES = MultiDiscrete((2, 3), (2,), (0, 1))
SPACES: dict[str, tuple[ObservationSpace, Space]] = {
    "MlpPolicy": (VECTOR, Box((2,), "float32", (-1.0,), (1.0,))),
    "CnnPolicy": (IMAGE, Discrete(3)),
    "MultiInputPolicy": (Dict((("a", VECTOR), ("b", IMAGE), ("c", CHOICES), ("d", Discrete(4, 1)))), CHOICES),
}


def moved(module: nn.Module, mode: FakeTensorMode, but: str = "") -> nn.Module:
    """A module whose parameters and buffers are fake tensors on the device."""
    for one in module.modules():
        for name, parameter in one._parameters.items():
            if parameter is not None:
                one._parameters[name] = nn.Parameter(mode.from_tensor(parameter.detach()).to(NAME))
        for name, buffer in one._buffers.items():
            if buffer is not None:
                fake = mode.from_tensor(buffer)
                one._buffers[name] = fake if name == but else fake.to(NAME)
    return module


def main() -> None:
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    found = {}
    for case in CASES:
        try:
            found[" ".join(case).strip()] = str(learn(*case))
        except FakeTensorDeviceMismatchError as error:
            found[" ".join(case)] = str(error)
    print(json.dumps(found))


def learn(policy: str, algorithm: str, mutation: str) -> int:
    """Two updates with completion, publishing and a snapshot; the number of readings."""
    observation, action = SPACES[policy]
    config: Any = PpoConfig(batch_size=7, n_epochs=2, clip_range_vf=0.2, target_kl=9.0)
    config = config if algorithm == "ppo" else ImpalaConfig(batch_size=7)
    batch = _made_up(observation, action, 4, 5, 0)
    version = np.repeat(np.array([0, 0, 0, 1, 1]), 4).reshape(5, 4)  # two acted, and the present one is another
    final = {name: leaf[:1].copy() for name, leaf in batch.last_leaves.items()}
    batch = replace(batch, final_row=np.array([3]), version=version, final_leaves=final)
    module = build_policy(PolicyConfig(policy), observation, action, 1)
    readings: list[torch.device] = []

    def numpy(tensor: torch.Tensor) -> Any:
        assert tensor.device.type == "cpu", f"numpy() of a tensor on {tensor.device}"
        readings.append(tensor.device)
        return np.ones(tuple(tensor.shape), np.float32)

    from_numpy = torch.from_numpy
    with ExitStack() as undo:
        mode = undo.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        for name, reading in READINGS.items() | {("numpy", numpy)}:
            undo.enter_context(mock.patch.object(FakeTensor, name, reading))
        undo.enter_context(mock.patch.object(torch, "from_numpy", lambda array: mode.from_tensor(from_numpy(array))))
        undo.enter_context(mutated(mutation))
        flat = FlatParameters(moved(module, mode, "start" if mutation == "choices" else ""))
        weights = Weights(flat, WeightStore(flat.size, 3))
        weights.publish()
        learner = build_algorithm(config, flat, 1)
        for update in range(2):
            learner.learn(batch, Moment(update, 2, False, 1.0, weights.acted))
            weights.publish_if_due(update)
        _, tensors, _ = snapshot(weights)
        assert {tensor.device.type for tensor in tensors.values()} == {"cpu"}
        load(weights, tensors)
        assert flat.vector.device.type == NAME
    return len(readings)


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """One tensor stays on the CPU."""

    def stays(array: Any, n_rows: int, device: Any) -> torch.Tensor:
        return torch.from_numpy(array.reshape(n_rows, *array.shape[2:]))

    def zeros_like(vector: torch.Tensor) -> torch.Tensor:
        return torch.zeros(vector.shape)

    target, attribute, put = {
        "rows": (ppo, "as_rows", stays),
        "completion": (assembly, "as_rows", stays),
        "moments": (device_adam, "torch", mock.Mock(zeros_like=zeros_like, linalg=torch.linalg)),
    }.get(name, (ppo, "as_rows", ppo.as_rows))
    with mock.patch.object(target, attribute, put):
        yield


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copy.deepcopy does it
    main()
