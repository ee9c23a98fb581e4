"""The algorithms' options, PPO's with SB3's names, meanings and defaults. Imports no torch: the command line reads it.

An algorithm's config has a `name`, says how long its rollouts are if nothing else is said (`default_n_steps`), whether
it takes rollouts that are older than max_lag (`admits_late`), and how to time it on a small batch (`quick`). All have
`batch_size`, `gamma`, `norm_reward`, `clip_reward`, `learner_threads` and `learner_device`, which others read as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from headrace.errors import UsageError, require_types

Schedule = float | str | Callable[[float], float]  # what Python takes; a command line can't type a function


@dataclass(frozen=True)
class PpoConfig:
    """PPO. A schedule is a number, or lin_X for X falling linearly to 0 (in Python also a function)."""

    name: ClassVar[str] = "ppo"
    default_n_steps: ClassVar[int] = 2048

    learning_rate: float | str = 3e-4
    """Adam's step size; a schedule."""
    batch_size: int = 64
    """Size of a minibatch (SB3's meaning; CleanRL calls the whole rollout so)."""
    n_epochs: int = 10
    """Passes over a rollout."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Trade-off of bias and variance in the advantages."""
    clip_range: float | str = 0.2
    """Clipping of the probability ratio; a schedule."""
    clip_range_vf: float | str | None = None
    """Clipping of value changes; a schedule, none if not given. Depends on the reward's scale."""
    normalize_advantage: bool = True
    """Normalise advantages within each minibatch."""
    ent_coef: float | str = 0.0
    """Weight of the entropy bonus; a schedule."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are shortened to it."""
    target_kl: float | None = None
    """Stop an update's epochs when the policy has moved 1.5 times this far."""
    norm_reward: bool = False
    """Divide rewards by the running standard deviation of discounted returns, as VecNormalize does."""
    clip_reward: float = 10.0
    """Normalised rewards are clipped to -X..X."""
    late: Literal["reject", "weight", "vtrace"] = "weight"
    """Data of older versions (max_lag > 0): reject what is older than max_lag and train on the rest as it is; weight it
    by the truncated ratio to the policy that acted (decoupled PPO); or correct advantages by V-trace."""
    late_clip: float = 1.0
    """Where those ratios are truncated."""
    gradients: Literal["auto", "autograd", "closed_form"] = "auto"
    """How gradients are computed: closed_form is a faster hand-derived backward pass for the plain MlpPolicy."""
    learner_threads: int = 1
    """Torch threads of the learner. Part of the run's identity: another count may give other bits."""
    learner_device: str = "cpu"
    """Where the learner computes: cpu, or a device of torch such as cuda (not measured). Actors: inference_device."""

    def __post_init__(self) -> None:
        whole = ("batch_size", "n_epochs", "learner_threads")
        numbers = ("gamma", "gae_lambda", "vf_coef", "max_grad_norm", "target_kl", "late_clip", "clip_reward")
        flags = ("normalize_advantage", "norm_reward")
        require_types(self, {int: whole, float: numbers, bool: flags, str: ("learner_device",)})
        for name in whole:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}: expected a whole number of at least 1, got {value!r}")
        _require_ranges(self)
        if self.target_kl is not None and not self.target_kl > 0:
            raise UsageError(f"target_kl: expected more than 0 or none, got {self.target_kl!r}")
        if self.late not in ("reject", "weight", "vtrace"):
            raise UsageError(f"late: expected reject, weight or vtrace, got {self.late!r}")
        if self.gradients not in ("auto", "autograd", "closed_form"):
            raise UsageError(f"gradients: expected auto, autograd or closed_form, got {self.gradients!r}")
        _require_effect(self.norm_reward, self.clip_reward)
        for name in ("learning_rate", "clip_range", "ent_coef"):
            schedule(name, getattr(self, name))
        if self.clip_range_vf is not None and not schedule("clip_range_vf", self.clip_range_vf)(1.0) > 0:
            raise UsageError(
                f"clip_range_vf: expected more than 0, or None for no clipping, got {self.clip_range_vf!r}"
            )

    @property
    def admits_late(self) -> bool:
        """Whether rollouts older than max_lag are learned from, with a correction."""
        return self.late != "reject"

    def quick(self, passes: int = 1) -> tuple[Self, int]:
        """The same with one pass over the rows (or a few), and how many passes there are."""
        return replace(self, n_epochs=passes, target_kl=None), self.n_epochs


@dataclass(frozen=True)
class ImpalaConfig:
    """Actor-critic with V-trace (IMPALA's loss): one pass over each batch, late rows corrected."""

    name: ClassVar[str] = "impala"
    default_n_steps: ClassVar[int] = 32

    learning_rate: float | str = 1e-3
    """Adam's step size; a schedule."""
    batch_size: int = 256
    """Size of a minibatch; each row is learned from once."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 1.0
    """How far V-trace's targets look ahead; 1 as in the paper."""
    late_clip: float = 1.0
    """Where the ratio of present to acting policy is truncated (the paper's rho); the paper's c stays at 1 at most."""
    ent_coef: float | str = 0.01
    """Weight of the entropy bonus; a schedule."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are shortened to it."""
    norm_reward: bool = False
    """Divide rewards by the running standard deviation of discounted returns, as VecNormalize does."""
    clip_reward: float = 10.0
    """Normalised rewards are clipped to -X..X."""
    learner_threads: int = 1
    """Torch threads of the learner. Part of the run's identity: another count may give other bits."""
    learner_device: str = "cpu"
    """Where the learner computes: cpu, or a device of torch such as cuda (not measured). Actors: inference_device."""
    admits_late: ClassVar[bool] = True

    def __post_init__(self) -> None:
        numbers, whole = (
            ("gamma", "gae_lambda", "late_clip", "vf_coef", "max_grad_norm", "clip_reward"),
            ("batch_size", "learner_threads"),
        )
        require_types(self, {int: whole, float: numbers, bool: ("norm_reward",), str: ("learner_device",)})
        for name in ("batch_size", "learner_threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected a whole number of at least 1, got {getattr(self, name)!r}")
        _require_ranges(self)
        _require_effect(self.norm_reward, self.clip_reward)
        for name in ("learning_rate", "ent_coef"):
            schedule(name, getattr(self, name))

    def quick(self, passes: int = 1) -> tuple[Self, int]:
        """It is one pass."""
        return self, 1


AlgorithmConfig = PpoConfig | ImpalaConfig
ALGORITHMS: dict[str, type[PpoConfig] | type[ImpalaConfig]] = {"ppo": PpoConfig, "impala": ImpalaConfig}


def _require_ranges(config: PpoConfig | ImpalaConfig) -> None:
    """Each comparison asks for what should be: with NaN all are false."""
    for name in ("gamma", "gae_lambda"):
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise UsageError(f"{name}: expected a number from 0 to 1, got {getattr(config, name)!r}")
    for name in ("late_clip", "max_grad_norm", "clip_reward"):
        if not getattr(config, name) > 0:
            raise UsageError(f"{name}: expected more than 0, got {getattr(config, name)!r}")
    if not 0 <= config.vf_coef < float("inf"):
        raise UsageError(f"vf_coef: expected a number of at least 0, got {config.vf_coef!r}")


def _require_effect(norm_reward: bool, clip_reward: float) -> None:
    if clip_reward != PpoConfig.clip_reward and not norm_reward:
        raise UsageError(f"clip_reward={clip_reward!r} has no effect without norm_reward; set norm_reward as well")


def schedule(name: str, value: Schedule) -> Callable[[float], float]:
    """A schedule as a function of the progress left, from 1 down to 0."""
    if callable(value):
        return _tried(name, value)
    text = str(value)
    try:
        start = float(text.removeprefix("lin_"))
    except ValueError as error:
        raise UsageError(f"{name}: expected a number or lin_NUMBER, got {value!r}") from error
    if not 0 <= start < float("inf"):
        raise UsageError(f"{name}: expected a number of at least 0, got {value!r}")
    if text.startswith("lin_"):
        return lambda progress_remaining: progress_remaining * start
    return lambda _: start


def _tried(name: str, function: Callable[[float], float]) -> Callable[[float], float]:
    """A user's function. It is called once now: what is wrong with it should not come up in the middle of an update."""

    def value_at(progress_remaining: float) -> float:
        at = f"{progress_remaining:.3g}" if progress_remaining < 1.0 else "1.0"
        try:
            value = function(progress_remaining)
            is_right = 0 <= float(value) < float("inf")
        except Exception as error:
            raise UsageError(
                f"{name}: expected a number, lin_NUMBER, or a function of the progress left (from 1 down to 0) that "
                f"returns a number; calling it with {at} raised {type(error).__name__}: {error}"
            ) from error
        if not is_right:
            raise UsageError(f"{name}: expected a number of at least 0, its function returns {value!r} for {at}")
        return value

    value_at(1.0)
    return value_at
