"""The learner on another device: nothing of it stays on the CPU, and the optimiser there is the one here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headrace as hr
from headrace.errors import UsageError
from headrace.learning.adam import Adam
from headrace.learning.device_adam import DeviceAdam
from support.fake_device import CASES

TESTS = Path(__file__).parents[2]


def test_nothing_of_the_learner_stays_on_the_cpu() -> None:
    """Completion, gradients, Adam, publishing and snapshots; and where one tensor stays, that is an error."""
    command = [sys.executable, "-m", "support.fake_device"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert set(found) == {" ".join(case).strip() for case in CASES}
    for policy, algorithm, mutation in CASES:
        outcome = found[f"{policy} {algorithm} {mutation}".strip()]
        assert ("at least two devices" in outcome) if mutation else int(outcome) > 5


def test_adam_is_the_same_anywhere() -> None:
    rng = torch.Generator().manual_seed(1)
    start, gradient = torch.randn(50, generator=rng), torch.zeros(50)
    vectors = start.clone(), start.clone()
    one, other = Adam(vectors[0], gradient), DeviceAdam(vectors[1], gradient)
    for step in range(30):
        gradient.copy_(torch.randn(50, generator=rng))
        norms = [adam.clipped_step(1e-2, 0.5) for adam in (one, other)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
        if step == 15:
            again = DeviceAdam(vectors[1], gradient)
            again.restore({name: tensor.clone() for name, tensor in other.tensors().items()})
            other = again
    assert torch.allclose(*vectors, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(vectors[0], start)


def test_devices_are_options() -> None:
    small = {"n_envs": 2, "n_steps": 8, "batch_size": 16, "topology": "inline"}
    for options in ({"device": "cpu"}, {"device": "auto"}, {"learner_device": "cpu"}):
        hr.PPO("MlpPolicy", "CartPole-v1", **small, **options).close()  # type: ignore[arg-type]
        hr.IMPALA("MlpPolicy", "CartPole-v1", **small, **options).close()  # type: ignore[arg-type]
    for options, said in (
        ({"device": "cuda:7"}, r"device .learner_device.: expected cpu, or a device that torch has here, got 'cuda:7'"),
        ({"learner_device": "toaster"}, "got 'toaster'"),
        ({"learner_device": "meta"}, "got 'meta': it computes nothing"),
        ({"device": "cuda", "learner_device": "cpu"}, "are the same option"),
    ):
        with pytest.raises(UsageError, match=said):
            hr.PPO("MlpPolicy", "CartPole-v1", **small, **options).close()  # type: ignore[arg-type]


def test_load_takes_sb3s_device_and_names_what_it_does_not_take(tmp_path: Path) -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=8, batch_size=16, topology="inline") as model:
        model.learn(16).save(tmp_path / "saved")
    hr.PPO.load(tmp_path / "saved", device="cpu").close()
    with pytest.raises(UsageError, match=r"device .learner_device.: expected cpu"):
        hr.PPO.load(tmp_path / "saved", device="toaster")
    with pytest.raises(UsageError, match="load: norm_obs is no option of ppo that can change"):
        hr.PPO.load(tmp_path / "saved", norm_obs=True)
