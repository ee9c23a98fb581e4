"""YAML for LLM rollouts, with RAGEN's keys: files compose, overrides are key=value, unknown keys are refused.

    base.yaml <- (defaults:) base-parallel.yaml <- key=value ... -> AgentsConfig

Only what is listed in `_KNOWN` exists, and what ragen.py knows of RAGEN's trainer; a misspelt key gets the nearest one
as a suggestion.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.agents import ragen
from headrace.agents.config_files import sections
from headrace.agents.consent import require_own_words
from headrace.agents.cost import Prices
from headrace.agents.engines.batching import Batching
from headrace.agents.engines.scripted import Latency
from headrace.agents.engines.servers import Server
from headrace.agents.environments.instructed import instructed
from headrace.agents.environments.registry import spec_of
from headrace.agents.environments.text_env import TextEnvSpec
from headrace.agents.limits import Limits
from headrace.agents.plan import Rules, shares
from headrace.agents.ways import WAYS
from headrace.errors import UsageError, whole

ENGINES = ("scripted", "tiny", "openai")


@dataclass(frozen=True)
class EngineConfig:
    """Which engine, and how."""

    kind: str = "scripted"
    latency: Latency = field(default_factory=Latency)
    batching: Batching = field(default_factory=Batching)
    server: Server = field(default_factory=Server)
    slots: int = 32
    parked: int = 96
    steps: int = 300  # of teaching the tiny model
    tokenizer: str = ""  # of a server's model: its folder
    prices: Prices = field(default_factory=Prices)


@dataclass(frozen=True)
class AgentsConfig:
    """A rollout, as configured."""

    seed: int
    backend: str
    n_jobs: int
    env_groups: int
    group_size: int
    envs: tuple[TextEnvSpec, ...]
    n_groups: tuple[int, ...]
    rules: Rules
    limits: Limits
    engine: EngineConfig
    pooled: bool
    ignored: tuple[str, ...] = ()  # keys of a trainer, which do nothing here


# Every key there is, with what it means by default.
_KNOWN: dict[str, Any] = {
    "seed": 1,
    "agent_proxy.use_parallel_rollout": False,
    "agent_proxy.parallel_n_jobs": -1,
    "agent_proxy.parallel_backend": "auto",
    "agent_proxy.max_turn": 5,
    "agent_proxy.max_actions_per_turn": 2,
    "agent_proxy.action_sep": "||",
    "agent_proxy.enable_think": True,
    "agent_proxy.max_context": 4096,
    "agent_proxy.max_tokens": 128,
    "agent_proxy.temperature": 1.0,
    "agent_proxy.top_p": 1.0,
    "agent_proxy.top_k": 0,
    "agent_proxy.system": "",
    "agent_proxy.answers": "tags",
    "es_manager.format_penalty": -0.1,
    "es_manager.pooled": False,
    "es_manager.train.env_groups": 8,
    "es_manager.train.group_size": 8,
    "es_manager.train.env_configs.tags": ["Bandit"],
    "es_manager.train.env_configs.n_groups": None,
    "limits.env_s": 60.0,
    "limits.engine_s": 300.0,
    "limits.stall_s": 30.0,
    "limits.publish_s": 600.0,
    "limits.attempts": 2,
    "limits.plays": 3,
    "limits.max_live": 512,
    "engine.kind": "scripted",
    "engine.latency.base_s": 0.0,
    "engine.latency.per_sequence_s": 0.0,
    "engine.latency.jitter_s": 0.0,
    "engine.max_batch": 256,
    "engine.max_wait_s": 0.1,
    "engine.slots": 32,
    "engine.parked": 96,
    "engine.steps": 300,
    "engine.urls": [],
    "engine.model": "",
    "engine.tokenizer": "",
    "engine.request_s": 60.0,
    "engine.attempts": 4,
    "engine.outage_s": 600.0,
    "engine.update_s": 120.0,
    "engine.price.prompt": 0.0,
    "engine.price.answer": 0.0,
}
# Whole numbers that nothing below looks at, and the least of each.
_WHOLE = {
    "agent_proxy.top_k": -1,
    "seed": 0,
    "agent_proxy.parallel_n_jobs": -1,
    "es_manager.train.env_groups": 1,
    "es_manager.train.group_size": 1,
    "engine.slots": 4,
    "engine.parked": 0,
    "engine.steps": 0,
    "engine.attempts": 1,
}
_OPEN = "custom_envs"  # tag -> env_type, env_config, max_actions_per_traj and other limits: the user's own names
_CUSTOM = (
    "env_type", "env_config", "env_instruction", "max_actions_per_traj", "max_turn", "max_actions_per_turn",
    "max_tokens", *ragen.PARALLEL,
)  # fmt: skip


def load(
    name: str,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    trust: bool = False,
    before_import: Callable[[Iterable[str]], None] = lambda names: None,
    is_val: bool = False,
) -> AgentsConfig:
    """A named configuration or a file, with overrides; `is_val` takes the groups of es_manager.val.

    What a file names to import, call, open or send to needs the same override, or `trust`. `before_import` gets the
    modules that are about to be imported.
    """
    given, typed = _Given(), _Given()
    for source in sections(name, folder, ragen.TRAINER_FILES):
        for key, value in _flat(source):
            given.set(key, value, name)
    for override in overrides:
        key, value = _parsed(override)
        given.set(key, value, override)
        typed.set(key, value, override)
    ignored = ragen.settle(given.values, given.theirs, is_val)
    if not trust:
        require_own_words(f"--config-name {name}", given.values, given.custom, typed.values, typed.custom)
    ignored += ragen.settle_environments(given.custom, given.theirs)
    before_import(str(entry.get("env_type")) for entry in given.custom.values())
    return replace(_config(given.values, given.custom), ignored=tuple(ignored))


class _Given:
    """What files and overrides say, one after the other."""

    def __init__(self) -> None:
        self.values = dict(_KNOWN)
        self.custom: dict[str, Any] = {}
        self.theirs: dict[str, Any] = {}  # of RAGEN's trainer

    def set(self, key: str, value: Any, where: str) -> None:
        """The later one counts."""
        if key == _OPEN or key.startswith(f"{_OPEN}."):
            _merge_custom(self.custom, key, value, where)
        elif key in self.values:
            self.values[key] = value
        elif ragen.is_theirs(key):
            self.theirs[key] = value
            if key in ragen.USED:
                self.values[ragen.USED[key]] = value
        else:
            said = "" if where.startswith(key) else f"{where}: "
            raise UsageError(f"{said}unknown key {key!r}: {_suggestion(key)}")


def _flat(section: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in section.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key != _OPEN:
            pairs += _flat(value, f"{key}.")
        else:
            pairs.append((key, value))
    return pairs


def _merge_custom(custom: dict[str, Any], key: str, value: Any, where: str) -> None:
    if key != _OPEN:  # an override: custom_envs.TAG.name=value
        _, tag, *rest = key.split(".")
        inner: Any = value
        for name in reversed(rest):
            inner = {name: inner}
        value = {tag: inner}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: {_OPEN}: expected tags with env_type and env_config, got {value!r}")
    for tag, section in value.items():
        if not isinstance(section, Mapping):
            raise UsageError(f"{where}: {_OPEN}.{tag}: expected env_type and env_config, got {section!r}")
        for name in section:
            if name not in _CUSTOM:
                close = difflib.get_close_matches(str(name), _CUSTOM, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_CUSTOM)}"
                raise UsageError(f"{where}: unknown key {_OPEN}.{tag}.{name}: {hint}")
        if not isinstance(section.get("env_config") or {}, Mapping):
            raise UsageError(
                f"{where}: {_OPEN}.{tag}.env_config: expected names and values, got {section['env_config']!r}"
            )
        before = custom.setdefault(tag, {})
        options = {**before.get("env_config", {}), **(section.get("env_config") or {})}
        before |= dict(section) | ({"env_config": options} if options else {})


def _parsed(text: str) -> tuple[str, Any]:
    import yaml

    key, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"{text!r}: expected key=value, as in agent_proxy.max_turn=3")
    try:
        return key.lstrip("+"), yaml.safe_load(value) if value else ""  # + is Hydra's sign of a key that is new
    except yaml.YAMLError as error:
        raise UsageError(f"{text!r}: the value can't be read: {error}") from error


def _suggestion(key: str) -> str:
    leaf = key.rpartition(".")[2]
    same_leaf = [known for known in _KNOWN if known.rpartition(".")[2] == leaf]
    ours = difflib.get_close_matches(key, [*_KNOWN, _OPEN], n=1, cutoff=0.5)
    theirs = [] if ours else difflib.get_close_matches(key, ragen.suggestions(), n=1, cutoff=0.5)
    section = [] if ours else difflib.get_close_matches(key.partition(".")[0], ragen.TRAINER, n=1, cutoff=0.8)
    close = same_leaf or ours or section or theirs
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(_KNOWN)}, {_OPEN}"


def _spec(tag: str, entry: Mapping[str, Any] | None) -> TextEnvSpec:
    settings = dict(entry or {})
    words = settings.pop("env_instruction", None)
    spec = spec_of(tag, settings)
    return instructed(spec, str(words)) if words else spec


def _config(values: dict[str, Any], custom: Mapping[str, Any]) -> AgentsConfig:
    tags = values["es_manager.train.env_configs.tags"]
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"es_manager.train.env_configs.tags: expected a list of tags, got {tags!r}")
    for name in ("agent_proxy.use_parallel_rollout", "es_manager.pooled", "agent_proxy.enable_think"):
        if not isinstance(values[name], bool):
            raise UsageError(f"{name}: expected true or false, got {values[name]!r}")
    for name, least in _WHOLE.items():
        whole(name, values[name], least)
    for name, default in _KNOWN.items():
        if isinstance(default, float) and (
            isinstance(values[name], bool) or not isinstance(values[name], (int, float))
        ):
            raise UsageError(f"{name}: expected a number, got {values[name]!r}")
    urls = [values["engine.urls"]] if isinstance(values["engine.urls"], str) else values["engine.urls"]
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise UsageError(f"engine.urls: expected the address of a server, or several, got {urls!r}")
    counts = values["es_manager.train.env_configs.n_groups"]
    if counts is not None and not isinstance(counts, list):
        raise UsageError(f"es_manager.train.env_configs.n_groups: expected a list, a number per tag, got {counts!r}")
    for count in counts or ():
        whole("es_manager.train.env_configs.n_groups", count, 0)
    for name, known in (("engine.kind", ENGINES), ("agent_proxy.parallel_backend", WAYS)):
        if values[name] not in known:
            raise UsageError(f"{name}: expected one of {', '.join(known)}, got {values[name]!r}")
    if values["agent_proxy.parallel_n_jobs"] == 0:
        raise UsageError("agent_proxy.parallel_n_jobs: expected -1 (auto) or at least 1, got 0")
    env_groups = values["es_manager.train.env_groups"]
    proxy = {key.partition(".")[2]: value for key, value in values.items() if key.startswith("agent_proxy.")}
    rules = Rules(
        **{name: proxy[name] for name in (
            "max_turn", "max_actions_per_turn", "max_tokens", "max_context", "enable_think", "action_sep",
            "temperature", "top_p", "top_k", "system", "answers",
        )},
        format_penalty=values["es_manager.format_penalty"],
    )  # fmt: skip
    engine = EngineConfig(
        values["engine.kind"],
        Latency(*(float(values[f"engine.latency.{name}"]) for name in ("base_s", "per_sequence_s", "jitter_s"))),
        Batching(values["engine.max_batch"], float(values["engine.max_wait_s"])),
        Server(
            tuple(urls),
            values["engine.model"],
            request_s=float(values["engine.request_s"]),
            attempts=values["engine.attempts"],
            outage_s=float(values["engine.outage_s"]),
            update_s=float(values["engine.update_s"]),
        ),
        values["engine.slots"],
        values["engine.parked"],
        values["engine.steps"],
        str(values["engine.tokenizer"]),
        Prices(float(values["engine.price.prompt"]), float(values["engine.price.answer"])),
    )
    return AgentsConfig(
        values["seed"],
        values["agent_proxy.parallel_backend"] if values["agent_proxy.use_parallel_rollout"] else "sequential",
        values["agent_proxy.parallel_n_jobs"],
        env_groups,
        values["es_manager.train.group_size"],
        tuple(_spec(tag, custom.get(tag)) for tag in tags),
        shares(env_groups, tags, counts),
        rules,
        Limits(
            **{
                name: values[f"limits.{name}"]
                for name in ("env_s", "engine_s", "stall_s", "publish_s", "attempts", "plays", "max_live")
            }
        ),
        engine,
        values["es_manager.pooled"],
    )
