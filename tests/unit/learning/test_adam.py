"""Our Adam is torch's, to rounding, and goes on from a saved state bit for bit."""

import subprocess
import sys

import torch

from headrace.learning.adam import Adam


def pair(size: int = 257) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, generator=generator), torch.zeros(size)


def gradients(steps: int, size: int = 257) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, generator=generator) * 10.0 ** (step % 5 - 2) for step in range(steps)]


def test_it_is_torchs_adam() -> None:
    vector, gradient = pair()
    theirs = vector.clone().requires_grad_()
    ours, torchs = Adam(vector, gradient), torch.optim.Adam([theirs], lr=3e-3, eps=1e-5)
    for step, one in enumerate(gradients(50)):
        gradient.copy_(one)
        theirs.grad = one.clone()
        learning_rate = 3e-3 * (1 - step / 50)
        torchs.param_groups[0]["lr"] = learning_rate
        ours.step(learning_rate)
        torchs.step()
        torch.testing.assert_close(vector, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_a_restored_state_goes_on_bit_for_bit() -> None:
    vector, gradient = pair()
    adam = Adam(vector, gradient)
    assert adam.tensors() == {}
    for one in gradients(5):
        gradient.copy_(one)
        adam.step(1e-3)
    other_vector, other_gradient = vector.clone(), torch.zeros_like(gradient)
    other = Adam(other_vector, other_gradient)
    other.restore({name: tensor.clone() for name, tensor in adam.tensors().items()})
    for one in gradients(5):
        gradient.copy_(one)
        other_gradient.copy_(one)
        adam.step(1e-3)
        other.step(1e-3)
    assert vector.numpy().tobytes() == other_vector.numpy().tobytes()


def test_training_does_not_load_torchs_compiler() -> None:
    code = (
        "import sys, headrace as hr; hr.PPO('MlpPolicy', 'CartPole-v1', n_envs=4, n_steps=8, batch_size=16, seed=1)"
        ".learn(32); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
