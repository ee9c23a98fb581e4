"""What `headrace doctor` measures: learning with other options, on made-up rows; short runs without and with a change.

    newest checkpoint: spaces, policy ──rehearse──> what learning takes with other minibatches, as multiples
    config.json ──consent──> baseline, changed, baseline, changed ... in a temporary directory ──> steps/s of each

The first needs no environment, so none is built. The second builds the run's own, with the consent that --resume needs.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from headrace.errors import HeadraceError, UsageError
from headrace.planning.advice import Advice
from headrace.planning.evidence import Evidence, evidence_of
from headrace.run_config import CLASS, KWARGS, RunConfig, SessionConfig, decode, is_object
from headrace.telemetry.sinks import read_records

_MOST_MINIBATCH = 8  # times larger
_ROWS = 2048  # to learn from, in a measurement
_FEWEST_UPDATES, _FEWEST_DUE = 8, 3  # of a short run; checkpoints or evaluations in it
_LONGEST = 8.0  # times the seconds that were asked for, to see some of those


def learning_costs(run_dir: Path, evidence: Evidence) -> dict[tuple[str, int], float]:
    """What learning would take with larger minibatches and more threads; nothing if that can't be measured here."""
    from headrace.build import acting_policy, build_algorithm
    from headrace.checkpoints.snapshot import find_latest
    from headrace.envs.spec import EnvSpec
    from headrace.launch.rehearsal import rehearse
    from headrace.loading import require_sound
    from headrace.memory import spaces
    from headrace.policies.config import BUILT_IN, Extractors
    from headrace.policies.masks import built

    try:
        _, snapshot, _ = find_latest(run_dir)
        require_sound(snapshot)
        saved = snapshot.state["config"]
        if CLASS in saved["policy"] or saved["policy"]["policy"] not in BUILT_IN:
            return {}  # code of the user's own, which is not run for a look
        functions = {name: 0.1 for name, value in saved["algorithm"].items() if isinstance(value, dict)}
        config = decode(saved, EnvSpec("Any-v0"), Extractors({}, {}), **functions)
        observation = spaces.decode_observation(snapshot.state["observation_space"])
        action = spaces.decode(snapshot.state["action_space"])
        module = acting_policy(built(config.policy, observation, action, 0), config, observation, action)

        def took_s(**options: int) -> float:
            other = replace(config.algorithm, **options)  # type: ignore[arg-type]
            place = config.topology
            return rehearse(module, observation, action, place, 0, other, build_algorithm, least_rows).update_s

        size, rollout = config.algorithm.batch_size, config.topology.n_envs * config.topology.n_steps
        least_rows = max(_ROWS, size * _MOST_MINIBATCH)  # so that what is done once per update weighs little
        present_s = took_s()
        asked = [("batch_size", size * times) for times in (2, 4, _MOST_MINIBATCH) if size * times <= rollout]
        threads = len(os.sched_getaffinity(0))
        asked += [("learner_threads", threads)] if threads > config.algorithm.learner_threads else []
        return {one: took_s(**dict([one])) / present_s for one in asked}
    except HeadraceError:
        return {}


def accepted(data: Mapping[str, Any], evidence: Evidence, advice: Sequence[Advice]) -> list[Advice]:
    """The advice that headrace would not refuse if it were typed. Imports and builds nothing that a file names.

    A configuration that can't be read refuses nothing.
    """
    from headrace.checkpoints.form import CONFIG, FormError
    from headrace.cli.train_command import changed
    from headrace.collecting.topology import Choice, resolve
    from headrace.envs.spec import EnvSpec
    from headrace.policies.config import Extractors

    try:
        room = {name: value for name, value in data.items() if name not in ("session", "proof")}
        CONFIG(room, "config")
        functions = {name: 0.1 for name, value in room["algorithm"].items() if isinstance(value, dict)}
        config = decode(room, EnvSpec("Any-v0"), Extractors({}, {}), **functions)
        session = SessionConfig(**data.get("session", {}))
    except (FormError, HeadraceError, TypeError, ValueError, KeyError):
        return list(advice)
    seen = Choice(evidence.place, max(1, len(evidence.workers)), "")

    def is_accepted(one: Advice) -> bool:
        try:
            other, _ = changed(config, session, _typed(one))
            resolve(other.topology, lambda asked: seen)
        except UsageError:
            return False
        return True

    return [one for one in advice if is_accepted(one)]


def can_be_tried(advice: Advice) -> bool:
    """Whether short runs show what it brings; they have no live view that could be left out."""
    return advice.is_applicable and bool(_typed(advice))


def same_disk(run_dir: Path) -> Path | None:
    """Where short runs write as fast as this one did: beside it, if temporary files lie on another disk."""
    beside = run_dir.resolve().parent
    is_elsewhere = beside.stat().st_dev != os.stat(tempfile.gettempdir()).st_dev
    return beside if is_elsewhere and os.access(beside, os.W_OK) else None


def _typed(advice: Advice) -> list[str]:
    """Its options but for one that is not part of a configuration."""
    return [word for word in advice.options if word != "--quiet"]


def admitted(run_dir: Path, data: Mapping[str, Any], doubt: str, trust: bool) -> tuple[RunConfig, SessionConfig]:
    """The configuration of a run that may be built."""
    from headrace.envs.consent import extractors_to_ask_for, require_consent
    from headrace.loading import admit_config
    from headrace.policies.config import BUILT_IN

    source = str(run_dir / "config.json")
    admit_config(data, source, doubt, trust=trust)
    if doubt and not trust:
        require_consent(extractors_to_ask_for(data["policy"]), source, doubt)
    if lost := _lost(data):
        what = f"{run_dir} was built with {', '.join(lost)}, which a file can't hold"
        raise UsageError(f"--apply: {what}, so it can't be run again from here; try the advice in your own script")
    try:
        session = SessionConfig(**data.get("session", {}))
        config = decode({name: value for name, value in data.items() if name != "session"})
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(f"{source}: can't be run again: {type(error).__name__}: {error}") from error
    if config.policy.policy not in BUILT_IN:
        own = f"the policy of {run_dir} ({config.policy.policy}) is a module of its own"
        raise UsageError(f"--apply: {own}, which a file can't hold")
    return config, session


def _lost(data: Mapping[str, Any]) -> list[str]:
    """What stands in a configuration by its name only, as functions and objects do."""
    env, policy = data["env"], data["policy"]
    parts = {"the environment": env["env"]} | {f"wrapper {n}": one for n, one in enumerate(env["wrappers"], 1)}
    parts |= data["algorithm"] | policy.get(CLASS, {})
    lost = [f"{name or CLASS} {one['callable']}" for name, one in parts.items() if isinstance(one, dict)]
    kwargs = [env["kwargs"], *policy.get(KWARGS, {}).values()]
    return lost + [f"the argument {name}" for some in kwargs for name, value in some.items() if is_object(value)]


def tried(
    config: RunConfig,
    session: SessionConfig,
    evidence: Evidence,
    advice: Advice,
    seconds: float,
    rounds: int,
    progress: Callable[[str], object] = lambda text: None,
    folder: Path | None = None,
) -> tuple[float, float]:
    """Steps/s of short runs without and with a change, in alternation: medians. `folder`: where they write."""
    from headrace.cli.train_command import changed

    other, later = changed(config, session, _typed(advice))
    runs = {"as it was": (config, session, evidence.sps), " ".join(advice.options): (other, later, advice.sps)}
    reached: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, (one, how, expected) in runs.items() if number % 2 == 0 else reversed(runs.items()):
            progress(f"round {number + 1} of {rounds}: {name} ...")
            found = short_run(one, how, expected, seconds, folder=folder)
            if not found.sps:
                raise HeadraceError(f"--apply: {name}: too few updates in this time to compare; give --seconds more")
            reached[name].append(found.sps)
    progress("")
    before, after = (median(speeds) for speeds in reached.values())
    return before, after


def short_run(
    config: RunConfig,
    session: SessionConfig,
    expected_sps: float,
    seconds: float,
    seen: Callable[[Mapping[str, float]], object] = lambda record: None,
    folder: Path | None = None,
) -> Evidence:
    """What the files of a run of some seconds say. `seen` gets every record as it comes."""
    from headrace.api.model import Model
    from headrace.clock import now_s
    from headrace.files import MAX_JSON_BYTES, parse_object, read_regular

    rollout = config.topology.n_envs * config.topology.n_steps
    due = _FEWEST_DUE * max(session.checkpoint_every, session.eval_every)
    steps = max(expected_sps * seconds, min(due, expected_sps * seconds * _LONGEST), _FEWEST_UPDATES * rollout)
    how = replace(session, total_timesteps=math.ceil(steps), check_episodes=0, stop_reward=None)
    until_s = math.inf

    def is_in_time(record: Mapping[str, float]) -> bool:
        nonlocal until_s
        seen(record)
        until_s = min(until_s, now_s() + 3 * _LONGEST * seconds)  # from the first one on: workers take time to start
        return now_s() < until_s

    with (
        tempfile.TemporaryDirectory(prefix="headrace-doctor-", dir=folder) as scratch,
        Model.from_config(config, steps=how.total_timesteps) as model,
    ):
        result = model.train(how, Path(scratch) / "run", show=False, callback=is_in_time)
        if result.exit_code:
            raise HeadraceError(f"--apply: a short run ended with: {result.exit_reason}")
        records = read_records(Path(scratch) / "run" / "metrics.jsonl")
        files = [read_regular(Path(scratch) / "run" / name, MAX_JSON_BYTES) for name in ("config.json", "result.json")]
    return evidence_of(records, *map(parse_object, files))
