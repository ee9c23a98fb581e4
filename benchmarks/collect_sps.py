"""Steps/s with a policy but without learning, beside a plain loop over Gymnasium's SyncVectorEnv with the same policy.

The plain loop is what a careful user writes: one batched forward of the actor, a torch Categorical sample with its
log-probability and value, one env.step, results stored. headrace collects completed rollouts of the same fields.
Also: the small policy's forward at batch 8 beside the same three products in numpy.
"""

import time
from statistics import median

import gymnasium as gym
import harness
import numpy as np
import torch

import headrace as hr
from headrace.inference.local import LocalInference
from headrace.memory.spaces import Box, Discrete
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import MlpPolicy, build_policy
from headrace.policies.plain_mlp import PlainMlpAct

OBSERVATION, ACTION, N_STEPS = Box((4,), "float32", (-4.0,), (4.0,)), Discrete(2), 128


def plain_loop(n_envs: int, seconds: float) -> float:
    """Steps/s of SyncVectorEnv with eager torch."""
    policy = build_policy(PolicyConfig(), OBSERVATION, ACTION, seed=1)
    assert isinstance(policy, MlpPolicy)
    towers = [
        torch.nn.Sequential(t[0], torch.nn.Tanh(), t[1], torch.nn.Tanh(), t[2]) for t in (policy.actor, policy.critic)
    ]
    envs = gym.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode="sync")
    obs, _ = envs.reset(seed=1)
    store = {"obs": np.zeros((N_STEPS, n_envs, 4), np.float32)}
    store |= {
        name: np.zeros((N_STEPS, n_envs), np.float32) for name in ("action", "reward", "ended", "log_prob", "value")
    }
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for t in range(N_STEPS):
            with torch.no_grad():
                tensor = torch.from_numpy(obs)
                distribution = torch.distributions.Categorical(logits=towers[0](tensor))
                action = distribution.sample()
                log_prob, value = distribution.log_prob(action), towers[1](tensor).squeeze(-1)
            store["obs"][t] = obs
            obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            store["action"][t], store["reward"][t], store["ended"][t] = action, reward, terminated | truncated
            store["log_prob"][t], store["value"][t] = log_prob, value
        steps += N_STEPS * n_envs
    elapsed = time.perf_counter() - start
    envs.close()
    return steps / elapsed


def collector(n_envs: int, seconds: float) -> float:
    """Steps/s of completed rollouts."""
    with hr.Collector(
        "CartPole-v1", "MlpPolicy", n_envs=n_envs, n_steps=N_STEPS, seed=1, topology="inline"
    ) as rollouts:
        next(rollouts)
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            steps += next(rollouts).steps
        return steps / (time.perf_counter() - start)


def forward_us(kind: str, rows: int = 8, calls: int = 2000) -> float:
    """Microseconds of the small actor's forward: ours without sampling, ours with everything, eager modules, numpy."""
    policy = build_policy(PolicyConfig(), OBSERVATION, ACTION, seed=1)
    assert isinstance(policy, MlpPolicy)
    obs, noise, out = np.ones((rows, 4), np.float32), np.zeros((rows, 2), np.float32), np.zeros(rows, np.int64)
    weights = [p.detach().numpy() for p in policy.actor.parameters()]
    tensor, plain = torch.from_numpy(obs), PlainMlpAct(policy)
    inference = LocalInference(policy, OBSERVATION, ACTION, rows)
    eager = torch.nn.Sequential(policy.actor[0], torch.nn.Tanh(), policy.actor[1], torch.nn.Tanh(), policy.actor[2])

    def numpy_forward() -> object:
        h = np.tanh(obs @ weights[0].T + weights[1])
        h = np.tanh(h @ weights[2].T + weights[3])
        return h @ weights[4].T + weights[5]

    functions = {
        "forward": lambda: plain.forward(obs),
        "act": lambda: inference.act({"obs": obs}, noise, out),
        "eager torch": lambda: torch.distributions.Categorical(logits=eager(tensor)).sample(),
        "numpy": numpy_forward,
    }
    function = functions[kind]
    with torch.inference_mode():
        for _ in range(200):
            function()
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
    return median(times) * 1e6


def main() -> None:
    arguments = harness.arguments(__doc__)
    torch.set_num_threads(1)
    rounds, seconds = (1, 0.2) if arguments.smoke else (3, 1.0) if arguments.quick else (9, 2.0)
    claims, absent = [], {}
    for n_envs in (8, 64):
        values = harness.alternate(
            {
                f"headrace, {n_envs} envs": lambda n=n_envs: collector(n, seconds),
                f"SyncVectorEnv loop, {n_envs} envs": lambda n=n_envs: plain_loop(n, seconds),
            },
            rounds,
            absent=absent,
        )
        ours, theirs = (median(series) for series in values.values())
        claims.append(
            harness.Claim(
                f"collecting, {n_envs} envs", ours, "steps/s", theirs, ours / theirs, ">= 1x (aim 1.3x)", ours >= theirs
            )
        )
    kinds = ("forward", "act", "eager torch", "numpy")
    values = harness.alternate({kind: lambda kind=kind: forward_us(kind) for kind in kinds}, rounds, absent=absent)
    medians = {kind: median(series) for kind, series in values.items()}
    for kind, goal in (("forward", 1.5), ("act", None), ("eager torch", None)):
        ratio = medians[kind] / medians["numpy"]
        holds = None if goal is None else ratio <= goal
        claims.append(
            harness.Claim(
                f"{kind} at batch 8",
                medians[kind],
                "us",
                medians["numpy"],
                ratio,
                f"<= {goal}x numpy" if goal else "-",
                holds,
            )
        )
    harness.report(claims, arguments.json, absent)


if __name__ == "__main__":
    main()
