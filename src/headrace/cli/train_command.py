"""`headrace train ENV`: from options to a training session."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from headrace.cli.options import translate, with_file
from headrace.envs.spec import EnvSpec
from headrace.errors import UsageError
from headrace.launch.topology import TopologyConfig
from headrace.learning.config import PpoConfig
from headrace.policies.config import PolicyConfig
from headrace.run_config import RunConfig
from headrace.session import SessionConfig

if TYPE_CHECKING:
    from headrace.api import PPO


@dataclass(frozen=True)
class TrainOptions:
    """Train PPO on an environment. CleanRL's names (--num-envs, --num-steps, --update-epochs ...) work too."""

    env: Annotated[str, tyro.conf.Positional] = ""
    """A Gymnasium id, or module:attribute of a class or factory of your own."""
    config: Path | None = None
    """Defaults from a TOML file, or from the config.json of another run; options given here win."""
    resume: Path | None = None
    """Go on with a run directory or checkpoint, bit for bit; --total-timesteps may be raised."""
    run_dir: Path | None = None
    """Where results go; runs/<env>__ppo__<seed>__<time> if not given."""
    seed: int | None = None
    """Root of every random number of the run; drawn and recorded if not given."""
    env_kwargs: str = "{}"
    """Keyword arguments of the environment, as JSON."""
    wrappers: tuple[str, ...] = ()
    """Wrappers as module:attribute, the last one outermost."""
    action_repeat: int = 1
    """Send every action this many times and sum the rewards."""
    policy: tyro.conf.OmitArgPrefixes[PolicyConfig] = field(default_factory=PolicyConfig)
    ppo: tyro.conf.OmitArgPrefixes[PpoConfig] = field(default_factory=PpoConfig)
    topology: tyro.conf.OmitArgPrefixes[TopologyConfig] = field(default_factory=TopologyConfig)
    session: tyro.conf.OmitArgPrefixes[SessionConfig] = field(default_factory=SessionConfig)
    quiet: bool = False
    """No live view."""
    dry_run: bool = False
    """Print the resolved plan and why, and stop."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    argv = translate(argv)
    options = _parse(argv)
    from headrace.api import PPO
    from headrace.session import open_run_dir

    if options.resume is not None:
        return _resume(options, argv)
    if not options.env:
        raise UsageError("expected an environment: headrace train ENV, or --resume RUN")
    with PPO.from_config(_run_config(options)) as model:
        if options.dry_run:
            print(model.plan())
            return 0
        run_dir = open_run_dir(options.run_dir, model.run, options.session)
        return _train(model, options, options.session, run_dir)


def _parse(argv: list[str]) -> TrainOptions:
    defaults = TrainOptions()
    path = _value_of("--config", argv)
    if path is not None:
        defaults = with_file(defaults, Path(path))
    return tyro.cli(TrainOptions, args=argv, default=defaults, prog="headrace train")


def _resume(options: TrainOptions, argv: list[str]) -> int:
    from headrace.api import PPO
    from headrace.checkpoints.snapshot import find_latest

    assert options.resume is not None
    found, snapshot, damaged = find_latest(options.resume)
    for line in damaged:
        print(f"headrace: warning: {line}", file=sys.stderr)
    run_dir = options.run_dir or (found.parent.parent if found.parent.name == "checkpoints" else found)
    session = options.session
    saved = _saved_session(run_dir)
    if saved is not None:
        session = (
            replace(saved, total_timesteps=session.total_timesteps) if _value_of("--total-timesteps", argv) else saved
        )
    with PPO.from_snapshot(snapshot) as model:
        if options.dry_run:
            print(f"{'resumes':<12} {found.name} at {model.num_timesteps:,} of {session.total_timesteps:,} steps")
            print(model.plan())
            return 0
        return _train(model, options, session, run_dir)


def _train(model: PPO, options: TrainOptions, session: SessionConfig, run_dir: Path) -> int:
    logging.basicConfig(
        filename=run_dir / "log.txt", level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    result = model.train(session, run_dir, show=not options.quiet)
    mean = "no episode ended" if result.mean_return is None else f"mean return {result.mean_return:.1f}"
    print(
        f"{result.exit_reason}: {result.steps:,} steps, {result.sps:,.0f} steps/s, {mean}; "
        f"weights {result.weights_sha256[:12]}"
    )
    print(f"results in {run_dir}{os.sep}, report in {run_dir / 'report.html'}")
    return result.exit_code


def _saved_session(run_dir: Path) -> SessionConfig | None:
    path = run_dir / "config.json"
    return SessionConfig(**json.loads(path.read_text())["session"]) if path.is_file() else None


def _run_config(options: TrainOptions) -> RunConfig:
    try:
        kwargs = json.loads(options.env_kwargs)
    except ValueError as error:
        raise UsageError(
            f"--env-kwargs: expected JSON such as '{{\"max_episode_steps\": 100}}', got {options.env_kwargs!r}: {error}"
        ) from error
    if not isinstance(kwargs, dict):
        raise UsageError(f"--env-kwargs: expected a JSON object, got {options.env_kwargs!r}")
    seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
    spec = EnvSpec(options.env, kwargs, options.wrappers, options.action_repeat)
    return RunConfig(spec, seed, options.policy, options.ppo, options.topology)


def _value_of(name: str, argv: list[str]) -> str | None:
    for position, argument in enumerate(argv):
        if argument == name and position + 1 < len(argv):
            return argv[position + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None
