"""Feature extractors of the user's own, as SB3's users write them: found, built for a Gymnasium space, and tried.

    class MyExtractor(nn.Module):                             # or SB3's BaseFeaturesExtractor
        def __init__(self, observation_space, features_dim=64): ...
        features_dim                                          # how many numbers forward returns for each row

    Extractors (classes, or module:Class) --own_features--> Own, for policies/features

Torch's generator is set from the run's seed while one is built, and given back. What a checkpoint names comes here
after consent only (loading).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.envs.adapters.gymnasium_spaces import as_gymnasium
from headrace.envs.spec import load_attribute
from headrace.errors import UsageError, plain
from headrace.memory.spaces import Dict, ObservationSpace, as_seen, leaves_of, made_up
from headrace.policies.config import Extractors, PolicyConfig
from headrace.policies.features import Own, OwnEncoder, prepared_space
from headrace.policies.layers import GAIN
from headrace.policies.masks import rest_of

_ROWS = 3


def own_features(given: Extractors | None, observation: ObservationSpace, config: PolicyConfig) -> Own | None:
    """What builds the user's extractors; None if there are none."""
    if given is None:
        return None
    if config.action_masks and isinstance(observation, Dict):
        observation = rest_of(observation)  # extractors do not see the mask
    leaves = [name for name, _ in observation.leaves] if isinstance(observation, Dict) else []
    for name in given.classes:
        if name and name not in leaves:
            known = ", ".join(leaves) or "one array: give the class itself"
            raise UsageError(f"features_extractor_class: there is no observation {name!r}; expected some of {known}")

    def build(name: str, space: ObservationSpace, generator: torch.Generator) -> nn.Module | None:
        if name not in given.classes:
            return None
        kind = given.classes[name]
        kind = load_attribute(kind, "features_extractor_class") if isinstance(kind, str) else kind
        seed = int(torch.randint(1 << 62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = _made(kind, space, given.kwargs.get(name, {}))
        if config.ortho_init:
            _start(module, generator)
        _try(module, kind.__name__, space, config)
        return module

    return build


def _made(kind: Any, space: ObservationSpace, kwargs: Any) -> nn.Module:
    name = getattr(kind, "__name__", repr(kind))
    try:
        module = kind(as_gymnasium(prepared_space(space)), **kwargs)
    except Exception as error:
        raise UsageError(
            f"features_extractor_class {name} raised {type(error).__name__}: {error}. It was called with the "
            f"observation space and features_extractor_kwargs={kwargs!r}"
        ) from error
    size = plain(getattr(module, "features_dim", None))  # numpy's: np.prod(space.shape) is one
    if not isinstance(module, nn.Module) or type(size) is not int or size < 1:
        raise UsageError(
            f"features_extractor_class {name}: expected a torch module with a features_dim of at least 1, got "
            f"{type(module).__name__} with features_dim {size!r}"
        )
    return module


def _start(module: nn.Module, generator: torch.Generator) -> None:
    """Orthogonal weights and biases of 0, as SB3 starts extractors."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, GAIN, generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _try(module: nn.Module, name: str, space: ObservationSpace, config: PolicyConfig) -> None:
    rng = np.random.default_rng(0)
    rows = {leaf: torch.from_numpy(made_up(one, rng, _ROWS)) for leaf, one in leaves_of(space).items()}
    encoder = OwnEncoder(space, module, config)
    try:
        with torch.no_grad():
            out: Any = encoder(as_seen(rows))
    except Exception as error:
        raise UsageError(f"features_extractor_class {name}: forward raised {type(error).__name__}: {error}") from error
    if not isinstance(out, Tensor) or tuple(out.shape) != (_ROWS, encoder.size) or out.dtype != torch.float32:
        got = f"{out.dtype} {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise UsageError(
            f"features_extractor_class {name}: expected forward to return float32 [N, {encoder.size}], as its "
            f"features_dim says (N = {_ROWS} rows), got {got}"
        )
