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
from torch._decomp.decompositions import gru_impl
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorDeviceMismatchError, FakeTensorMode
from torch.utils import backend_registration

from headrace.build import build_algorithm
from headrace.launch.rehearsal import _made_up
from headrace.learning import assembly, device_adam, ppo, sequences
from headrace.learning.algorithm import Moment
from headrace.learning.config import ImpalaConfig, PpoConfig
from headrace.memory.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, ObservationSpace, Space, as_seen
from headrace.policies import masks
from headrace.policies import sequences as policy_sequences
from headrace.policies.config import RECURRENT, PolicyConfig
from headrace.policies.normalization import normalized
from headrace.policies.policy import state_size_of
from headrace.weights.flat import FlatParameters
from headrace.weights.saving import load, snapshot
from headrace.weights.store import Weights, WeightStore
from support.recurrent_policies import Counting

NAME = "fakegpu"
READINGS: dict[str, Any] = {
    "tolist": lambda tensor: [1.0] * len(tensor), "__float__": lambda tensor: 1.0, "__int__": lambda tensor: 1,
    "__bool__": lambda tensor: False,  # nothing of it is negative
}  # fmt: skip
CASES = [
    ("MlpPolicy", "ppo", ""), ("CnnPolicy", "impala", ""), ("MultiInputPolicy", "ppo", ""),
    *(("MultiInputPolicy", "ppo", mutation) for mutation in ("rows", "moments", "completion", "choices")),
    ("MlpLstmPolicy", "ppo", ""), ("MultiInputGruPolicy", "ppo", ""), ("own", "ppo", ""),
    ("masked MlpLstmPolicy", "ppo", ""), ("MultiInputGruPolicy", "impala", ""),
    *(("MlpLstmPolicy", "ppo", mutation) for mutation in ("sequences", "states", "chunks", "mean_0")),
    ("MultiInputGruPolicy", "ppo", "sequences"),
]  # fmt: skip
"""Policy, algorithm, and which tensor stays on the CPU."""
VECTOR, IMAGE = Box((3,), "float32", (-1.0,), (1.0,)), Box((36, 36, 1), "uint8", (0.0,), (255.0,))
CHOICES = MultiDiscrete((2, 3), (2,), (0, 1))
SPACES: dict[str, tuple[ObservationSpace, Space]] = {
    "own": (VECTOR, Discrete(3)),
    "masked": (Dict((("action_mask", MultiBinary((5,))), ("observation", VECTOR))), CHOICES),
    "Mlp": (VECTOR, Box((2,), "float32", (-1.0,), (1.0,))),
    "Cnn": (IMAGE, Discrete(3)),
    "MultiInput": (Dict((("a", VECTOR), ("b", IMAGE), ("c", CHOICES), ("d", Discrete(4, 1)))), CHOICES),
}


def moved(module: nn.Module, mode: FakeTensorMode, but: str = "") -> nn.Module:
    """A module whose parameters and buffers are fake tensors on the device."""
    for one in module.modules():
        for name, parameter in list(one._parameters.items()):
            if parameter is not None:  # setattr: an LSTM has a list of its own of them
                setattr(one, name, nn.Parameter(mode.from_tensor(parameter.detach()).to(NAME)))
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
    """Two updates with completion, publishing and a snapshot; the number of readings. A memory is normalised, too."""
    observation, action = next(spaces for stem, spaces in SPACES.items() if policy.startswith(stem))
    config: Any = PpoConfig(batch_size=7, n_epochs=2, clip_range_vf=0.2, target_kl=9.0)
    config = config if algorithm == "ppo" else ImpalaConfig(batch_size=7)
    module: Any = built(policy, observation, action)
    remembers = state_size_of(module) > 0
    if remembers:
        more = {"late": "vtrace", "n_epochs": 1} if algorithm == "ppo" else {}
        config = replace(config, batch_size=3, **more)  # chunks of 3 rows, and of 2
    batch = _made_up(observation, action, 4, 5, state_size_of(module))
    if remembers:
        batch.terminated[1, 2] = batch.truncated[0, 3] = True
        batch.valid[2, 2] = False
    version = np.repeat(np.array([0, 0, 0, 1, 1]), 4).reshape(5, 4)  # two acted, and the present one is another
    final = {name: leaf[:1].copy() for name, leaf in batch.last_leaves.items()}
    batch = replace(batch, final_row=np.array([3]), version=version, final_leaves=final)
    readings: list[torch.device] = []

    def numpy(tensor: torch.Tensor) -> Any:
        assert tensor.device.type == "cpu", f"numpy() of a tensor on {tensor.device}"
        readings.append(tensor.device)
        return getattr(tensor, "array", np.ones(tuple(tensor.shape), np.float32))

    def from_numpy(array: Any) -> torch.Tensor:
        tensor: Any = mode.from_tensor(real(array))
        tensor.array = array  # numbers of rows are read again, on the CPU
        return tensor

    real = torch.from_numpy
    with ExitStack() as undo:
        mode = undo.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        for name, reading in READINGS.items() | {("numpy", numpy)}:
            undo.enter_context(mock.patch.object(FakeTensor, name, reading))
        undo.enter_context(mock.patch.object(torch, "from_numpy", from_numpy))
        undo.enter_context(mock.patch.object(torch._VF, "gru", gru_impl))  # torch's own, in Python: fakes stay fakes
        undo.enter_context(mutated(mutation))
        flat = FlatParameters(moved(module, mode, {"choices": "start"}.get(mutation, mutation)))
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
        if hasattr(flat.module, "started"):  # the calls of users of sb3-contrib
            obs = as_seen({name: leaf[0] for name, leaf in batch.leaves.items()})
            flat.module.predict(obs, np.zeros(batch.state.shape, np.float32), np.ones(4, bool))
    return len(readings)


def built(policy: str, observation: ObservationSpace, action: Space) -> nn.Module:
    """A policy by its name; those with a memory are normalised, and late rows have two versions."""
    if policy == "own":
        return Counting(observation, action)  # type: ignore[arg-type]
    name = policy.removeprefix("masked ")
    config = PolicyConfig(name, norm_obs=name in RECURRENT, action_masks=name != policy)
    return normalized(masks.built(config, observation, action, 1), observation, config)


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
        "sequences": (policy_sequences.Split, "_there", lambda split, numbers: torch.from_numpy(numbers)),
        "states": (sequences, "_put", lambda array, device: torch.from_numpy(array)),
        "chunks": (sequences, "_chosen", lambda column, index: column.cpu().index_select(1, index.cpu()).flatten(0, 1)),
    }.get(name, (ppo, "as_rows", ppo.as_rows))
    with mock.patch.object(target, attribute, put):
        yield


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copy.deepcopy does it
    main()
