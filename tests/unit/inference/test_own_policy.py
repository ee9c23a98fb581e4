"""A policy of one's own at start-up: shapes in its own terms; act against log_prob. Honest ones pass, lies do not."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.errors import UsageError
from headrace.inference.frequencies import Claimed, surprise
from headrace.inference.own_policy import require_own_policy
from headrace.memory.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from headrace.policies.distributions import HALF_LOG_2PI
from support.faulty_envs import Steady
from support.torch_policy import TorchPolicy
from support.toy_policies import OwnPolicy, own_policy

OBS = Box((4,), "float32", (-3.0,), (3.0,))
IMAGE = Box((36, 36, 3), "uint8", (0.0,), (255.0,))


def box(size: int) -> Box:
    return Box((size,), "float32", (-1.0,), (1.0,))


ACTIONS: dict[str, Space] = {
    "two": Discrete(2),
    "eighteen": Discrete(18, start=3),
    "five hundred": Discrete(500),
    "several": MultiDiscrete((3, 2, 4), (3,), (0, 0, 0)),
    "many": MultiDiscrete((5,) * 12, (3, 4), (0,) * 12),
    "bits": MultiBinary((5,)),
    "thirty bits": MultiBinary((30,)),
    "number": box(1),
    "six numbers": box(6),
    "forty numbers": box(40),
    "plane": Box((2, 3), "float64", (-np.inf,), (np.inf,)),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_honest_policies_pass(name: str) -> None:
    """Of every action space, with many initial weights; it takes a part of a second."""
    seconds = []
    for seed in range(12):
        policy = own_policy(OBS, ACTIONS[name], seed)
        begun = time.process_time()
        require_own_policy(policy, OBS, ACTIONS[name])
        seconds.append(time.process_time() - begun)
    assert sorted(seconds)[6] < 1.0, seconds  # 0.05 to 0.25 s of CPU on a calm machine


def test_an_honest_policy_of_images_passes() -> None:
    require_own_policy(own_policy(IMAGE, Discrete(6)), IMAGE, Discrete(6))


# ---------------------------------------------------------------------------------------------- choices: honest and not


class Choices(nn.Module):
    """Logits from one layer; what a test changes is a function."""

    largest_tile = 64
    noise = hr.NoiseSpec("gumbel", 3)

    def __init__(self, act: Callable[[Tensor, Tensor], Tensor] | None = None, **claims: Any) -> None:
        super().__init__()
        self.head, self.critic = nn.Linear(4, 3), nn.Linear(4, 1)
        self.lie, self.claims = act, claims

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        logits = self.head(obs)
        noise = torch.zeros_like(logits) if noise is None else noise
        return (logits + noise).argmax(-1) if self.lie is None else self.lie(logits, noise)

    def evaluate(self, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        log_p = torch.log_softmax(self.head(obs) * self.claims.get("scale", 1.0), -1)
        log_prob = log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1) + self.claims.get("more", 0.0)
        return hr.Evaluation(log_prob, -(log_p.exp() * log_p).sum(-1), self.value(obs))

    def value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(obs).squeeze(-1)
        return value


def with_seed(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


LYING_CHOICES: dict[str, Callable[[], nn.Module]] = {
    "takes the best": lambda: Choices(lambda logits, noise: logits.argmax(-1)),
    "samples uniformly": lambda: Choices(lambda logits, noise: noise.argmax(-1)),
    "another temperature": lambda: Choices(lambda logits, noise: (logits + 1.2 * noise).argmax(-1)),
    "half the noise": lambda: Choices(lambda logits, noise: (logits + 0.5 * noise).argmax(-1)),
    "the wrong sign": lambda: Choices(lambda logits, noise: (noise - logits).argmax(-1)),
    "shifted by one": lambda: Choices(lambda logits, noise: ((logits + noise).argmax(-1) + 1) % 3),
    "never the last": lambda: Choices(lambda logits, noise: (logits + noise)[:, :2].argmax(-1)),
    "evaluates other logits": lambda: Choices(scale=0.8),
    "adds up to more than 1": lambda: Choices(more=0.1),
    "adds up to less than 1": lambda: Choices(more=-0.1),
    "normal noise where gumbel is needed": lambda: NormalForGumbel(),
}


class NormalForGumbel(Choices):
    noise = hr.NoiseSpec("normal", 3)


@pytest.mark.parametrize("lie", LYING_CHOICES)
def test_choices_that_do_not_come_as_often_as_claimed(lie: str) -> None:
    for seed in range(4):
        require_own_policy(with_seed(Choices, seed), OBS, Discrete(3))
        with pytest.raises(UsageError, match=r"do not belong together|adds up to"):
            require_own_policy(with_seed(LYING_CHOICES[lie], seed), OBS, Discrete(3))


def test_a_lie_about_weights_that_start_small_is_found() -> None:
    """SB3's heads start at a hundredth: all actions are nearly as likely, whatever is done to the logits."""

    def small(**claims: Any) -> nn.Module:
        policy = with_seed(lambda: Choices(**claims))
        nn.init.orthogonal_(policy.head.weight, 0.01)  # type: ignore[union-attr, arg-type]
        nn.init.zeros_(policy.head.bias)  # type: ignore[union-attr, arg-type]
        return policy

    require_own_policy(small(), OBS, Discrete(3))
    with pytest.raises(UsageError, match="do not belong together"):
        require_own_policy(small(scale=0.5), OBS, Discrete(3))


class Entangled(OwnPolicy):
    """Claims that its choices are independent, and draws two of them with the same noise."""

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        if noise is not None:
            noise = torch.cat([noise[:, :3], noise[:, :3], noise[:, 6:]], -1)
        return super().act(obs, noise)


class StuckBit(OwnPolicy):
    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        bits = super().act(obs, noise)
        bits[:, -1] = 1
        return bits


def test_choices_that_hang_together_and_are_claimed_not_to() -> None:
    action = MultiDiscrete((3, 3, 3), (3,), (0, 0, 0))
    with pytest.raises(UsageError, match="do not belong together"):
        require_own_policy(with_seed(lambda: Entangled(OBS, action)), OBS, action)
    for space in (MultiBinary((4,)), MultiBinary((40,))):
        with pytest.raises(UsageError, match=rf"act chose [01] in entry {space.shape[0] - 1}"):
            require_own_policy(with_seed(partial(StuckBit, OBS, space)), OBS, space)


def test_the_bound_on_false_alarms_holds() -> None:
    """Frequencies of honest draws stay below it, and it is no looser than it has to be for lies of 0.02 to be found."""
    rng = np.random.default_rng(3)
    for n, p in ((40, [0.5, 0.5]), (1000, [0.9, 0.05, 0.05]), (65536, [0.97] + [0.001] * 30)):
        log_bounds = []
        for _ in range(400):
            chosen = rng.choice(len(p), n, p=np.array(p) / sum(p))
            claimed = Claimed(np.array([p]) / sum(p), np.zeros(n, int))
            log_bounds.append(surprise(np.zeros(n, int), chosen, claimed)[1])
        for level in (0.5, 0.1, 0.01):
            assert np.mean(np.array(log_bounds) < math.log(level)) <= level + 0.02
    lie, claim = rng.random(65536) < 0.52, Claimed(np.full((1, 2), 0.5), np.zeros(65536, int))
    assert surprise(np.arange(65536) % 8, lie.astype(int), claim)[1] < math.log(1e-9)


# ---------------------------------------------------------------------------------------------- numbers: honest and not


class Numbers(nn.Module):
    """A Gaussian; `after` is done to the sample, and `claims` change what evaluate says of it."""

    largest_tile = 64

    def __init__(self, size: int = 2, after: Callable[[Tensor], Tensor] | None = None, **claims: Any) -> None:
        super().__init__()
        self.noise = hr.NoiseSpec(claims.get("kind", "normal"), size + claims.get("wider", 0))
        self.mean, self.critic = nn.Linear(4, size), nn.Linear(4, 1)
        self.log_std = nn.Parameter(torch.zeros(size))
        self.after, self.claims = after, claims

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        mean = self.mean(obs)
        noise = torch.zeros_like(mean) if noise is None else noise[:, : mean.shape[1]]
        std = self.claims.get("std", self.log_std.exp())
        x = mean + std * noise
        return x if self.after is None else self.after(x)

    def evaluate(self, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        x, correction = actions, torch.zeros(())
        if "squashed" in self.claims:
            x = torch.atanh(actions.clamp(-0.999999, 0.999999))
            correction = torch.log(1 - actions.square() + 1e-12).sum(-1) if self.claims["squashed"] else correction
        scaled = (x - self.mean(obs) - self.claims.get("shift", 0.0)) / self.log_std.exp()
        log_prob = -(0.5 * scaled.square() + HALF_LOG_2PI).sum(-1) - self.log_std.sum() * self.claims.get("spread", 1.0)
        if self.claims.get("kind") == "logistic":
            log_prob = -(scaled + 2 * torch.log1p(torch.exp(-scaled)) + self.log_std).sum(-1)
        log_prob = log_prob - correction + self.claims.get("more", 0.0)
        return hr.Evaluation(log_prob, self.log_std.sum().expand(len(obs)), self.value(obs))

    def value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(obs).squeeze(-1)
        return value


class Wrapped(Numbers):
    """An angle: the density is a sum over the noise that leads there. Honest."""

    def __init__(self) -> None:
        super().__init__(1, lambda x: torch.remainder(x + math.pi, 2 * math.pi) - math.pi)

    def evaluate(self, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        plain = [super(Wrapped, self).evaluate(obs, actions + 2 * math.pi * k) for k in range(-6, 7)]
        log_prob = torch.logsumexp(torch.stack([one.log_prob for one in plain]), 0)
        return plain[0]._replace(log_prob=log_prob)


class Mixture(Numbers):
    """One of two Gaussians, chosen by a third number: more noise than actions. Honest unless `weight` is a lie."""

    def __init__(self, weight: float = 0.5) -> None:
        super().__init__(2, wider=1)
        self.weight = weight

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        if noise is None:
            return super().act(obs, None) + 2.0
        return super().act(obs, noise) + torch.where(noise[:, -1:] > 0, 2.0, -2.0)

    def evaluate(self, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        above, below = super().evaluate(obs, actions - 2.0), super().evaluate(obs, actions + 2.0)
        weights = torch.tensor([[self.weight], [1 - self.weight]]).log()
        return above._replace(log_prob=torch.logsumexp(torch.stack([above.log_prob, below.log_prob]) + weights, 0))


class Bins(Numbers):
    """A Box whose numbers are of a few values: probabilities, no densities. Nothing is claimed that can be tested."""

    def __init__(self) -> None:
        super().__init__(1, lambda x: x.round().clamp(-2, 2), wider=1)


HONEST_NUMBERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "plain": (lambda: Numbers(), 2),
    "twenty": (lambda: Numbers(20), 20),
    "squashed": (lambda: Numbers(3, torch.tanh, squashed=True), 3),
    "logistic": (lambda: Numbers(2, kind="logistic"), 2),
    "wrapped": (Wrapped, 1),
    "mixture": (Mixture, 2),
    "wider noise": (lambda: Numbers(2, wider=3), 2),
    "bins": (Bins, 1),
}

LYING_NUMBERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "a fixed spread": (lambda: Numbers(2, std=1.0), 2),  # the same at the start, where log_std is 0
    "no log_std in log_prob": (lambda: Numbers(2, spread=0.0), 2),
    "a constant too much": (lambda: Numbers(2, more=0.1), 2),
    "a constant too little": (lambda: Numbers(2, more=-0.1), 2),
    "another mean": (lambda: Numbers(2, shift=0.1), 2),
    "five percent": (lambda: Numbers(1, lambda x: 1.05 * x), 1),
    "squashed without its derivative": (lambda: Numbers(3, torch.tanh, squashed=False), 3),
    "clipped": (lambda: Numbers(2, lambda x: x.clamp(-1, 1)), 2),
    "normal for logistic": (lambda: NormalForLogistic(2, kind="logistic"), 2),
    "mixture": (lambda: Mixture(weight=0.999), 2),
    "wider noise, another spread": (lambda: Numbers(2, wider=3, std=2.0), 2),
}


class NormalForLogistic(Numbers):
    def evaluate(self, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        self.claims.pop("kind", None)
        return super().evaluate(obs, actions)


@pytest.mark.parametrize("name", HONEST_NUMBERS)
def test_numbers_that_are_drawn_as_claimed(name: str) -> None:
    make, size = HONEST_NUMBERS[name]
    for seed in range(10):
        require_own_policy(with_seed(make, seed), OBS, box(size))


@pytest.mark.parametrize("name", LYING_NUMBERS)
def test_numbers_that_are_not(name: str) -> None:
    make, size = LYING_NUMBERS[name]
    for seed in range(4):
        with pytest.raises(UsageError, match=r"do not belong together|does it clip"):
            require_own_policy(with_seed(make, seed), OBS, box(size))


def test_a_policy_may_opt_out() -> None:
    policy = with_seed(lambda: Numbers(2, lambda x: x.clamp(-1, 1)))
    policy.skip_honesty_check = True  # type: ignore[assignment]
    require_own_policy(policy, OBS, box(2))


# ----------------------------------------------------------------------------------------------------- shapes and types


def changed(**methods: Any) -> TorchPolicy:
    """A policy with other methods; each gets the policy itself first."""
    return type("MyPolicy", (TorchPolicy,), methods)()


def returning(**changes: Callable[[Tensor], Tensor]) -> Callable[..., hr.Evaluation]:
    def evaluate(self: TorchPolicy, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        right = TorchPolicy.evaluate(self, obs, actions)
        return right._replace(**{name: change(getattr(right, name)) for name, change in changes.items()})

    return evaluate


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"noise": hr.NoiseSpec("gumbel", 3)}, "MyPolicy.act raised RuntimeError: .*width=3"),
    "action column": (
        {"act": lambda self, obs, noise: TorchPolicy.act(self, obs, noise)[:, None]},
        r"MyPolicy.act\(obs, noise\): expected a tensor \[N\].*got int64 \[8, 1\]; .squeeze",
    ),
    "float choices": (
        {"act": lambda self, obs, noise: TorchPolicy.act(self, obs, noise).float()},
        "expected choices of a whole-number type, got float32",
    ),
    "one too many": (
        {"act": lambda self, obs, noise: TorchPolicy.act(self, obs, noise) + 1},
        "expected choices from 0, below 2, got [12] to 2",
    ),
    "an array": (
        {"act": lambda self, obs, noise: TorchPolicy.act(self, obs, noise).numpy()},
        "expected a tensor .* got a ndarray",
    ),
    "no mode": (
        {"act": lambda self, obs, noise: (self.actor(obs) + noise).argmax(-1)},
        r"MyPolicy.act raised TypeError.*called with float32 \[8, 4\], None",
    ),
    "a bare tuple": (
        {"evaluate": lambda self, obs, actions: tuple(TorchPolicy.evaluate(self, obs, actions))},
        r"MyPolicy.evaluate: expected hr.Evaluation\(log_prob=.*got a plain tuple of 3",
    ),
    "nothing": ({"evaluate": lambda self, obs, actions: None}, "expected hr.Evaluation.* got None"),
    "value column": (
        {"evaluate": returning(value=lambda value: value[:, None])},
        r"evaluate\(...\).value: expected a tensor \[N\].*got float32 \[8, 1\]; .squeeze",
    ),
    "a mean": ({"evaluate": returning(log_prob=Tensor.mean)}, r"log_prob: expected a tensor \[N\].*got float32 \[\]"),
    "halves": ({"evaluate": returning(entropy=Tensor.half)}, "entropy: expected float32, got float16"),
    "another device": ({"evaluate": returning(value=lambda value: value.to("meta"))}, "on the cpu, got one on meta"),
    "NaN": ({"evaluate": returning(log_prob=lambda one: one * math.nan)}, "log_prob: expected numbers, got NaN"),
    "no gradients": (
        {"evaluate": torch.no_grad()(TorchPolicy.evaluate)},
        "evaluate: expected log_prob and value with gradients, got none; leave out no_grad",
    ),
    "value": (
        {"value": lambda self, obs: self.critic(obs), "evaluate": returning(value=lambda value: value[:, 0])},
        r"value\(obs\): expected a tensor \[N\].*got float32 \[8, 1\]",
    ),
    "another value": (
        {"value": lambda self, obs: self.critic(obs).squeeze(-1), "evaluate": returning(value=lambda value: value + 1)},
        r"value\(obs\): expected the values that evaluate returns, got others, by up to 1",
    ),
    "largest_tile": ({"largest_tile": 0.5}, "largest_tile: expected a whole number of at least 4"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_in_the_policys_own_terms(name: str) -> None:
    methods, words = BAD[name]
    with pytest.raises(UsageError, match=re.compile(words, re.DOTALL)):
        require_own_policy(changed(**methods), OBS, Discrete(2))


def test_a_module_elsewhere() -> None:
    with pytest.raises(UsageError, match=r"parameter actor.0.weight: expected the device cpu, got meta; call .cpu\(\)"):
        require_own_policy(TorchPolicy().to("meta"), OBS, Discrete(2))


@pytest.mark.parametrize("spec", [("uniform", 2), ("gumbel", 0), ("gumbel", 2.0), ("normal", None), (3, 3)])
def test_noise_that_there_is_not(spec: tuple[Any, Any]) -> None:
    with pytest.raises(UsageError, match="NoiseSpec: expected"):
        hr.NoiseSpec(*spec)


@pytest.mark.parametrize("topology", ["inline", "auto"])
def test_models_and_collectors_test_policies_of_ones_own(topology: str) -> None:
    for make in (
        lambda policy: hr.PPO(policy, "CartPole-v1", n_envs=2, n_steps=8, topology=topology),
        lambda policy: hr.Collector("CartPole-v1", policy, n_envs=2, n_steps=8, topology=topology),
    ):
        with pytest.raises(UsageError, match="MyPolicy: act and evaluate do not belong together"):
            make(changed(act=lambda self, obs, noise: self.actor(obs).argmax(-1)))


def test_built_in_policies_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.build.require_own_policy", lambda *_: pytest.fail("it is not the user's own"))
    with hr.PPO("MlpPolicy", Steady, n_envs=2, n_steps=8, topology="inline"):
        pass


def with_actor(actor: nn.Module) -> TorchPolicy:
    policy = TorchPolicy()
    policy.actor = actor  # type: ignore[assignment]
    return policy


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return torch.nn.utils.weight_norm(layer)


@pytest.mark.parametrize("make", [hr.PPO, lambda policy, env, **options: hr.Collector(env, policy, **options)])
def test_modules_that_can_not_be_used_as_they_are(make: Any) -> None:
    """Lazy layers have no shape yet; the old weight_norm keeps a tensor that torch can't copy."""
    for policy, says in (
        (with_actor(nn.LazyLinear(2)), r"TorchPolicy\.parameter actor\.weight: expected a parameter with a shape"),
        (with_actor(old_weight_norm(nn.Linear(4, 2))), r"policy: TorchPolicy can't be copied: .*parametrizations"),
    ):
        with pytest.raises(UsageError, match=says):
            make(policy, "CartPole-v1", n_envs=4, n_steps=8, topology="inline", seed=1)


@pytest.mark.parametrize("kind", [hr.PPO, hr.IMPALA])
def test_a_policy_of_which_nothing_is_trained(kind: Any) -> None:
    """A collector may act with it; a model would have no gradient."""
    frozen, place = TorchPolicy().requires_grad_(False), {"n_envs": 4, "n_steps": 8, "topology": "inline", "seed": 1}
    with pytest.raises(UsageError, match="policy: TorchPolicy has requires_grad=False everywhere: nothing to train"):
        kind(frozen, "CartPole-v1", **place)
    with hr.Collector("CartPole-v1", frozen, **place) as rollouts:  # type: ignore[arg-type]
        assert next(rollouts).steps == 32
