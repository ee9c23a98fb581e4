"""SB3's keywords that headrace has no part for: taken where they ask for what happens anyway, else refused by name.

PPO(sde_sample_freq=-1)  nothing to do        PPO(use_sde=True)  an error that says what to do instead
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import UsageError

_SDE = "state-dependent exploration is not built; leave it out for Gaussian noise"
_OWN_POLICY = "write a policy of your own (docs/guides/your-policy.md)"

MODEL: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_sde": ((False,), _SDE),
    "sde_sample_freq": ((-1,), _SDE),
    "rollout_buffer_class": ((None,), "rollouts have one form here; hr.Collector gives them to a learner of your own"),
    "rollout_buffer_kwargs": ((None, {}), "rollouts have one form here; leave it out"),
    "_init_setup_model": ((True,), "a model is set up when it is made; leave it out"),
}
"""Keyword: the values that ask for nothing, and what to do instead of others."""

POLICY: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_sde": ((False,), _SDE),
    "full_std": ((True,), _SDE),
    "use_expln": ((False,), _SDE),
    "squash_output": ((False,), f"Gaussian actions are clipped to their Box, not squashed; {_OWN_POLICY}"),
    "lstm_kwargs": ((None, {}), "dropout would make log-probabilities that can't be computed again; leave it out"),
    "optimizer_kwargs": ((None, {}, {"eps": 1e-5}), "Adam runs with eps=1e-5, SB3's default for PPO; leave it out"),
}
"""The same for policy_kwargs."""


def require_nothing(given: Mapping[str, Any], words: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    """Refuse what asks for a part that is not there."""
    for name, (values, instead) in words.items():
        if name in given and not any(given[name] is value or given[name] == value for value in values):
            raise UsageError(f"{name}={given[name]!r}: {instead}")


def require_adam(given: Any) -> None:
    """SB3's optimizer_class; the one that there is."""
    if getattr(given, "__name__", None) != "Adam" or not str(getattr(given, "__module__", "")).startswith("torch."):
        raise UsageError(f"optimizer_class: expected torch.optim.Adam, got {given!r}; leave it out")
