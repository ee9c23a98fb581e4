"""hr.export_policy: a trained policy as an ONNX file, for programs without torch.

model, or a checkpoint (data: its environment is not built, nothing it names is imported) --> policy.onnx
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.api.model import Model
from headrace.api.whereabouts import whereabouts
from headrace.checkpoints.snapshot import find_latest
from headrace.errors import UsageError
from headrace.inference.onnx_file import write_onnx
from headrace.keywords import in_words
from headrace.loading import Fit, require_fit, require_sound
from headrace.memory.spaces import decode, decode_observation
from headrace.policies.config import BUILT_IN
from headrace.policies.masks import built
from headrace.policies.normalization import normalized
from headrace.policies.policy import Module
from headrace.policies.threads import torch_threads
from headrace.run_config import CLASS, policy_of


@in_words()
def export_policy(
    source: Model | str | os.PathLike[str], to: str | os.PathLike[str], policy: Module | None = None
) -> Path:
    """Write the policy of a model, a run directory or a checkpoint to an .onnx file; returns its path.

    Its input `obs` is [N, ...] as the environment returns it, its output `actions` [N, ...] are those of
    predict(obs, deterministic=True). For a run whose policy was a module of your own, pass such a module.
    """
    path = whereabouts.reachable(Path(to))
    if path.suffix != ".onnx":
        raise UsageError(f"export: expected a file that ends in .onnx, got {str(path)!r}")
    if not path.parent.is_dir():
        raise UsageError(f"export: expected a file in an existing directory, got {str(path)!r}")
    with torch_threads(1):
        if isinstance(source, Model):
            parts = source.parts
            facts = _facts(parts.config.policy.policy, source.num_timesteps)
            write_onnx(parts.acting, parts.observation, parts.action, path, facts)
        else:
            _from_checkpoint(whereabouts.reachable(Path(source)), path.absolute(), policy)
    return Path(to)


def _from_checkpoint(source: Path, to: Path, policy: Module | None) -> None:
    _, snapshot, damaged = find_latest(source)
    for line in damaged:
        raise UsageError(f"export: {line}; name the checkpoint that you want")
    require_sound(snapshot)
    state = snapshot.state
    config = policy_of(state["config"]["policy"])
    if policy is None and config.policy not in BUILT_IN:
        raise UsageError(
            f"the run's policy was a module of its own ({config.policy}); pass policy=..., or --policy module:attribute"
        )
    if policy is None and CLASS in state["config"]["policy"]:
        raise UsageError(
            "the run's policy has feature extractors of its own, which an export does not import; load the run and "
            "export the model: hr.export_policy(hr.PPO.load(...), ...)"
        )
    observation, action = decode_observation(state["observation_space"]), decode(state["action_space"])
    module = built(config, observation, action, 0) if policy is None else copy.deepcopy(policy)
    module = normalized(module, observation, config)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    require_fit(snapshot, Fit(shapes, 0, observation, action), weights_only=True)
    module.load_state_dict(snapshot.weights)
    write_onnx(module, observation, action, to, _facts(config.policy, state["steps"]))


def _facts(policy: str, steps: int) -> dict[str, Any]:
    return {"policy": policy, "steps": steps, "headrace": __version__}
