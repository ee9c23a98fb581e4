"""RAGEN's and verl's own keys: what they mean here, which say what headrace does anyway, and which concern a trainer.

    a key of a file or an override --> USED: another name of one of ours
                                       VAL: what --val plays in the place of the training groups
                                       FIXED: only the values that headrace has anyway
                                       of a trainer: ignored, and listed once

A key that is none of these, and a misspelt neighbour of one that counts, is refused with a suggestion.
Knows no files; what the keys of headrace are is config.py's matter.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.errors import UsageError

_ROLLOUT = "actor_rollout_ref.rollout"
_SAMPLING = ("temperature", "top_p", "top_k")
USED = {
    "seed.train": "seed",
    "model_path": "engine.model",
    "actor_rollout_ref.model.path": "engine.model",
    **{f"{_ROLLOUT}.{name}": f"agent_proxy.{name}" for name in _SAMPLING},
    f"{_ROLLOUT}.response_length": "agent_proxy.max_tokens",
    f"{_ROLLOUT}.max_model_len": "agent_proxy.max_context",
}
_GROUPS = ("env_groups", "group_size", "env_configs.tags", "env_configs.n_groups")
VAL = {f"es_manager.val.{name}": f"es_manager.train.{name}" for name in _GROUPS}
VAL |= {"seed.val": "seed"} | {f"{_ROLLOUT}.val_kwargs.{name}": f"agent_proxy.{name}" for name in _SAMPLING}
# Conversations are whole and answers are sampled: other values would be another experiment.
FIXED: dict[str, tuple[Any, ...]] = {
    f"{_ROLLOUT}.do_sample": (True,),
    "agent_proxy.max_context_window": (-1, 0, None),
    "agent_proxy.context_window_mode": ("full",),
}
_GREEDY = f"{_ROLLOUT}.val_kwargs.do_sample"
TRAINER = (
    "actor_rollout_ref", "critic", "data", "algorithm", "trainer", "lora", "system", "ctx_manager", "reward_model",
    "custom_reward_function", "archer", "ray_init", "ray_kwargs", "global_profiler", "transfer_queue", "hydra",
    "agent_proxy.reward_normalization", "collapse_detection", "output", "model_config", "model_info",
)  # fmt: skip
_TRAINER_KEYS = (
    "micro_batch_size_per_gpu", "ppo_mini_batch_size", "enable_response_mask", "grpo_advantage_length_weight",
    "log_prob_micro_batch_size_per_gpu", "agent_proxy.use_turn_scores", "agent_proxy.batch_adjust_mode",
    "es_manager.environments",
)  # fmt: skip
TRAINER_FILES = ("ppo_trainer", "ppo_megatron_trainer")  # verl's: RAGEN's base builds on one, and we need none of it

PARALLEL = ("parallel_friendly", "max_workers")  # of a tag: how RAGEN plays it side by side, which is decided here

# Options of RAGEN's environments: ours by another name, or of no use here.
_OPTIONS = {
    "sokoban": {"num_boxes": "boxes"},
    "frozen_lake": {"p": "frozen"},
    "bandit": {"lo_arm_score": "steady", "hi_arm_hiscore": "payoff", "hi_arm_hiscore_prob": "chance"},
    "countdown": {},
}
_NO_OPTIONS = {
    "sokoban": ("max_steps", "search_depth", "grid_lookup", "grid_vocab", "action_lookup", "render_mode",
                "observation_format", "max_reset_tries"),
    "frozen_lake": ("map_seed", "render_mode", "grid_lookup", "grid_vocab", "action_lookup", "observation_format"),
    "bandit": ("action_space_start", "hi_arm_loscore", "render_mode", "action_lookup", "split"),
    "countdown": ("train_path", "max_instances", "render_mode", "score", "format_score"),
}  # fmt: skip
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def is_theirs(key: str) -> bool:
    """Whether a key is one of RAGEN's or verl's; UsageError if it is a misspelt one that would count."""
    counting = [*USED, *VAL, *FIXED, _GREEDY]
    if key in counting or key in _TRAINER_KEYS:
        return True
    if not any(key == one or key.startswith(f"{one}.") for one in TRAINER):
        return False
    parent, _, name = key.rpartition(".")
    beside = [one.rpartition(".")[2] for one in counting if one.rpartition(".")[0] == parent]
    close = difflib.get_close_matches(name, beside, n=1, cutoff=0.8)
    if close:
        raise UsageError(f"unknown key {key!r}: did you mean {parent}.{close[0]}?")
    return True


def suggestions() -> list[str]:
    """Keys and sections that may be meant by a misspelt one."""
    return [*USED, *VAL, *FIXED, *_TRAINER_KEYS, *TRAINER]


def resolved(value: Any, key: str, known: Mapping[str, Any]) -> Any:
    """A value in the place of ${another.key}."""
    for _ in range(8):
        found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return value
        if found[1] not in known:
            break
        value = known[found[1]]
    raise UsageError(f"{key}: {value!r} leads nowhere; give {key}=value")


def settle(values: dict[str, Any], theirs: Mapping[str, Any], is_val: bool) -> list[str]:
    """Turn values of ours into what theirs ask for, and return the keys that do nothing here."""
    known = {**values, **theirs}
    for key, allowed in FIXED.items():
        if key in theirs and (value := resolved(theirs[key], key, known)) not in allowed:
            raise UsageError(f"{key}: expected {allowed[0]!r}, which is what headrace does, got {value!r}")
    if is_val:
        _settle_val(values, theirs, known)
    for key, value in values.items():
        values[key] = resolved(value, key, known)
    if values["agent_proxy.top_k"] is None:  # so some write it for all tokens
        values["agent_proxy.top_k"] = 0
    counting = {*USED, *FIXED, *((*VAL, _GREEDY) if is_val else ())}
    return sorted(key for key in theirs if key not in counting)


def _settle_val(values: dict[str, Any], theirs: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if not any(key.startswith("es_manager.val.") for key in theirs):
        raise UsageError("--val: expected es_manager.val in the configuration: env_groups, group_size, env_configs")
    values["es_manager.train.env_configs.n_groups"] = None  # evenly, if it is not said
    for key, ours in VAL.items():
        if key in theirs:
            values[ours] = theirs[key]
    if resolved(theirs.get(_GREEDY, True), _GREEDY, known) is False:
        values["agent_proxy.temperature"] = 0.0


def settle_environments(custom: dict[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The same for custom_envs: RAGEN's names of options, and its max_tokens, which only its prompt mentions."""
    ignored = []
    for tag, entry in custom.items():
        where = f"custom_envs.{tag}"
        if "max_tokens" in entry and f"{_ROLLOUT}.response_length" in theirs:
            del entry["max_tokens"]
            ignored.append(f"{where}.max_tokens")
        for name in [name for name in PARALLEL if name in entry]:
            del entry[name]
            ignored.append(f"{where}.{name}")
        kind, options = str(entry.get("env_type", "")), dict(entry.get("env_config") or {})
        if kind not in _OPTIONS:
            continue
        for name in [name for name in options if name in _NO_OPTIONS[kind]]:
            del options[name]
            ignored.append(f"{where}.env_config.{name}")
        for theirs_name, ours in _OPTIONS[kind].items():
            if theirs_name in options:
                options[ours] = options.pop(theirs_name)
        if kind == "sokoban":
            _square(options, where)
        if kind == "frozen_lake":
            _slippery(options, where, is_ragens=any(key.startswith("trainer.") for key in theirs))
        if kind == "bandit" and {"lo_arm_name", "hi_arm_name"} <= options.keys():
            options["arms"] = (options.pop("lo_arm_name"), options.pop("hi_arm_name"))
        entry["env_config"] = options
    return ignored


def _slippery(options: dict[str, Any], where: str, is_ragens: bool) -> None:
    """RAGEN's ice is slippery if nothing is said; later versions say how often a step goes where it should."""
    rate = options.pop("success_rate", None)
    if rate is not None and (isinstance(rate, bool) or rate != 1):
        raise UsageError(f"{where}.env_config.success_rate: expected 1, or is_slippery instead of it, got {rate!r}")
    if rate is not None:
        options["is_slippery"] = False
    elif is_ragens:
        options.setdefault("is_slippery", True)


def _square(options: dict[str, Any], where: str) -> None:
    sides = options.pop("dim_room", None) or [options.pop(name) for name in ("dim_x", "dim_y") if name in options]
    if not sides:
        return
    if not isinstance(sides, (list, tuple)) or any(side != sides[0] for side in sides):
        raise UsageError(f"{where}.env_config: expected a square room (dim_x = dim_y), got {sides!r}")
    options["size"] = sides[0]


def shown(ignored: Iterable[str]) -> str:
    """A line that lists them by their sections."""
    counts: Counter[str] = Counter()
    for key in ignored:
        parts = key.split(".")
        depth = 2 if parts[0] in ("actor_rollout_ref", "es_manager", "agent_proxy", "custom_envs") else 1
        counts[".".join(parts[:depth]) + (".*" if len(parts) > depth else "")] += 1
    listed = ", ".join(section if count == 1 else f"{section} ({count})" for section, count in counts.items())
    note = "; --val plays es_manager.val" if any(key.startswith("es_manager.val.") for key in ignored) else ""
    return f"not used here, {counts.total()} keys that concern a trainer: {listed}{note}"
