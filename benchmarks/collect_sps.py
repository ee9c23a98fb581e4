"""Steps/s with a policy but without learning, beside plain loops with the same policy.

The plain loop is what a careful user writes: one batched forward of the actor, a torch Categorical sample with its
log-probability and value, one env.step, results stored. headrace collects completed rollouts of the same fields.
Gymnasium: CartPole, headrace's own loop beside one over SyncVectorEnv.
EnvPool: CartPole, headrace beside that loop and beside a lean one, which leaves log-probabilities and values to the end
of the rollout; on one core with one EnvPool thread, and on all cores with as many. The loops' steps include those that
only reset an environment; headrace's do not.
Also: the small policy's forward at batch 8 beside the same three products in numpy.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

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


def sync_vector(n_envs: int) -> Any:
    envs = gym.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode="sync")
    return envs, envs.reset(seed=1)[0]


def env_pool(n_envs: int) -> Any:
    import envpool

    threads = len(os.sched_getaffinity(0))
    envs = envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=n_envs, num_threads=threads, seed=[*range(n_envs)]
    )
    return envs, envs.reset()[0]


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """This thread, and those that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def eager_towers() -> list[torch.nn.Sequential]:
    """Actor and critic, as torch modules."""
    policy = build_policy(PolicyConfig(), OBSERVATION, ACTION, seed=1)
    assert isinstance(policy, MlpPolicy)
    return [
        torch.nn.Sequential(t[0], torch.nn.Tanh(), t[1], torch.nn.Tanh(), t[2]) for t in (policy.actor, policy.critic)
    ]


def plain_loop(n_envs: int, seconds: float, make: Callable[[int], Any] = sync_vector) -> float:
    """Steps/s with eager torch."""
    towers = eager_towers()
    envs, obs = make(n_envs)
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


def lean_loop(n_envs: int, seconds: float, make: Callable[[int], Any]) -> float:
    """The same with one forward of the actor a row, noise drawn once a rollout, the rest computed at its end."""
    actor, critic = eager_towers()
    envs, obs = make(n_envs)
    seen, action = np.zeros((N_STEPS, n_envs, 4), np.float32), np.zeros((N_STEPS, n_envs), np.int64)
    reward, (terminated, truncated) = np.zeros((N_STEPS, n_envs), np.float32), np.zeros((2, N_STEPS, n_envs), bool)
    rng = np.random.default_rng(1)
    steps, start = 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - start < seconds:
            noise = torch.from_numpy(rng.gumbel(size=(N_STEPS, n_envs, 2)).astype(np.float32))
            for t in range(N_STEPS):
                seen[t] = obs
                action[t] = (actor(torch.from_numpy(obs)) + noise[t]).argmax(-1).numpy()
                obs, reward[t], terminated[t], truncated[t], _ = envs.step(action[t])
            rows, chosen = torch.from_numpy(seen.reshape(-1, 4)), torch.from_numpy(action.reshape(-1, 1))
            torch.log_softmax(actor(rows), -1).gather(1, chosen)
            critic(rows)
            steps += N_STEPS * n_envs
    elapsed = time.perf_counter() - start
    envs.close()
    return steps / elapsed


def collector(n_envs: int, seconds: float, env: str = "CartPole-v1", **options: Any) -> float:
    """Steps/s of completed rollouts."""
    with hr.Collector(
        env, "MlpPolicy", n_envs=n_envs, n_steps=N_STEPS, seed=1, topology="inline", **options
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


def envpool_claims(rounds: int, seconds: float, absent: dict[str, str], n_envs: int = 64) -> list[harness.Claim]:
    """headrace over EnvPool beside both loops over it, pinned to one core and on all of them."""
    claims = []
    for cores in sorted({1, len(os.sched_getaffinity(0))}):
        where, mask = f"EnvPool, {n_envs} envs, {cores} cores", set(sorted(os.sched_getaffinity(0))[:cores])
        threads = {"num_threads": cores}
        contenders = {
            f"headrace, {where}": lambda t=threads: collector(n_envs, seconds, "envpool:CartPole-v1", env_kwargs=t),
            f"eager loop, {where}": lambda: plain_loop(n_envs, seconds, env_pool),
            f"lean loop, {where}": lambda: lean_loop(n_envs, seconds, env_pool),
        }
        with on_cores(mask):
            values = harness.alternate(contenders, rounds, absent=absent)
        ours, *theirs = (median(values[name]) if name in values else None for name in contenders)
        for name, baseline in zip(("plain loop", "lean loop"), theirs, strict=True):
            ratio = ours / baseline if ours and baseline else None
            holds = None if ratio is None else ratio >= 0.95
            name = f"collecting, {where}, beside a {name}"
            claims.append(harness.Claim(name, ours, "steps/s", baseline, ratio, ">= 0.95x", holds))
    return claims


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
    claims += envpool_claims(rounds, seconds, absent)
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
