"""Which policy a run uses, and its size. Imports no torch: the command line reads it before anything heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from headrace.errors import UsageError, require_types

RECURRENT = (
    "MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy", "MlpGruPolicy", "CnnGruPolicy", "MultiInputGruPolicy",
)  # fmt: skip
BUILT_IN = ("MlpPolicy", "auto", "CnnPolicy", "MultiInputPolicy", *RECURRENT)  # any other name is a user's module

Activation = Literal[
    "tanh", "relu", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "softplus", "sigmoid", "identity"
]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


_OF_MEMORY = ("lstm_hidden_size", "n_lstm_layers", "shared_lstm", "enable_critic_lstm")
_FLAGS = (
    "ortho_init", "share_features_extractor", "normalize_images", "norm_obs", "action_masks", "shared_lstm",
    "enable_critic_lstm",
)  # fmt: skip


@dataclass(frozen=True)
class PolicyConfig:
    """Which policy, and its size."""

    policy: str = "MlpPolicy"
    """MlpPolicy, CnnPolicy, MultiInputPolicy (Dict, Tuple), or auto, which chooses by the observation. With a memory:
    MlpLstmPolicy, MlpGruPolicy, and so on.
    """
    net_arch: tuple[int, ...] | None = None
    """Hidden layers of the actor and of the critic; if not given, 64 64 (MlpPolicy) or none (CnnPolicy)."""
    net_arch_vf: tuple[int, ...] | None = None
    """Hidden layers of the critic, where they differ from net_arch."""
    activation: Activation = "tanh"
    """Of these layers: tanh, relu, leaky_relu, elu, selu, gelu, silu, mish, softplus, sigmoid or identity."""
    ortho_init: bool = True
    """Start with orthogonal weights and biases of 0; otherwise as torch starts its layers."""
    cnn: Literal["nature", "small"] = "nature"
    """Convolutions of CnnPolicy: nature for images of about 84 x 84, small for 24 x 24 to 64 x 64."""
    share_features_extractor: bool = True
    """Actor and critic see the same features; otherwise each has convolutions and extractors of its own."""
    normalize_images: bool = True
    """Scale uint8 images to 0..1; otherwise they stay as they are."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions."""
    lstm_hidden_size: int = 256
    """Width of the memory of recurrent policies: MlpLstmPolicy, MlpGruPolicy ..."""
    n_lstm_layers: int = 1
    """Layers of the memory."""
    shared_lstm: bool = False
    """Whether the critic uses the actor's memory."""
    enable_critic_lstm: bool = True
    """Whether the critic has a memory of its own; without one, and none shared, it sees the present alone."""
    tile: int = 0
    """Rows a policy acts on at once; 0 chooses by policy and n_envs."""
    action_masks: bool = False
    """Never take actions that the environment forbids: by info["action_mask"], or by its method action_masks()."""
    norm_obs: bool = False
    """Normalise observations of numbers by their running mean and variance, as VecNormalize does; images are not."""
    norm_obs_keys: tuple[str, ...] | None = None
    """Which arrays of a Dict observation to normalise, if not all of numbers."""
    clip_obs: float = 10.0
    """Normalised observations are clipped to -X..X."""

    def __post_init__(self) -> None:
        numbers, sizes_of = ("log_std_init", "clip_obs"), ("tile", "lstm_hidden_size", "n_lstm_layers")
        require_types(self, {int: sizes_of, float: numbers, str: ("policy",), bool: _FLAGS})
        for name in sizes_of[1:]:
            if not _is_size(getattr(self, name)):
                raise UsageError(f"{name}: expected a whole number of at least 1, got {getattr(self, name)!r}")
        for name in ("net_arch", "net_arch_vf"):
            sizes: Any = getattr(self, name)
            if sizes is not None and not (isinstance(sizes, tuple) and all(_is_size(size) for size in sizes)):
                raise UsageError(f"{name}: expected whole numbers of at least 1, as in (64, 64), got {sizes!r}")
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if self.cnn not in ("nature", "small"):
            raise UsageError(f"cnn: expected nature or small, got {self.cnn!r}")
        if not self.clip_obs > 0:
            raise UsageError(f"clip_obs: expected more than 0, got {self.clip_obs!r}")
        keys: Any = self.norm_obs_keys
        if keys is not None and not (isinstance(keys, tuple) and all(isinstance(key, str) for key in keys)):
            raise UsageError(f"norm_obs_keys: expected names of observations, got {keys!r}")
        if keys is not None and not self.norm_obs:
            raise UsageError("norm_obs_keys: set norm_obs as well")
        if keys == ():
            raise UsageError("norm_obs_keys: expected at least one name, or none given for all arrays of numbers")
        if self.clip_obs != type(self).clip_obs and not self.norm_obs:
            raise UsageError(f"clip_obs={self.clip_obs!r} has no effect without norm_obs; set norm_obs as well")
        for name in _OF_MEMORY if self.policy in BUILT_IN and self.policy not in RECURRENT else ():
            if getattr(self, name) != getattr(type(self), name):
                raise UsageError(f"{name}: it is for recurrent policies such as MlpLstmPolicy, got {self.policy}")
        if self.cnn != "nature" and self.policy in ("MlpPolicy", "MlpLstmPolicy", "MlpGruPolicy"):
            raise UsageError(f"cnn: {self.policy} has no convolutions; use CnnPolicy, MultiInputPolicy or auto")
        if self.net_arch_vf is not None and self.net_arch is None:
            raise UsageError("net_arch_vf: give net_arch, the hidden layers of the actor, as well")

    def sizes(self, usual: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Hidden layers of the actor and of the critic; `usual` are those of a policy for which nothing was said."""
        actor = usual if self.net_arch is None else self.net_arch
        return actor, actor if self.net_arch_vf is None else self.net_arch_vf


@dataclass(frozen=True)
class Extractors:
    """Feature extractors of the user's own: classes, or module:Class, and their keyword arguments, by leaf.

    The name "" is that of whole observations, as SB3's features_extractor_class gets them.
    """

    classes: Mapping[str, Any]
    kwargs: Mapping[str, Mapping[str, Any]]


def _is_size(size: Any) -> bool:
    return type(size) is int and size >= 1
