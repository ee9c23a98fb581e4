"""`headrace train ENV`: from options to a training session; `--resume RUN` takes them from the run first."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from headrace.cli.options import env_kwargs, flat, parse, read_config, translate, value_of, with_file, with_option
from headrace.cli.own_modules import find_own_modules
from headrace.cli.own_words import require_own_words
from headrace.cli.printing import drop_stdout, explain, warn
from headrace.cli.saved_session import home_of, require_same, saved_session, with_places_open
from headrace.cli.tuning import TuneOptions, given, intended, note, require_fitting, require_no_tuning, tuned
from headrace.collecting.topology import TopologyConfig
from headrace.envs.spec import EnvSpec
from headrace.errors import HeadraceError, UsageError
from headrace.learning.config import ALGORITHMS, PpoConfig
from headrace.policies.config import PolicyConfig
from headrace.presets import preset
from headrace.run_config import RunConfig, SessionConfig, decode
from headrace.run_lock import RunLock

if TYPE_CHECKING:
    from headrace.api.model import Model
    from headrace.api.tuning import Tuned
    from headrace.telemetry.wandb_sink import WandbConfig


_Algorithm = Annotated[
    str, tyro.conf.arg(help=f"{' or '.join(ALGORITHMS)}; --help shows the options of the one that is named.")
]


@dataclass(frozen=True)
class TrainOptions:
    """Train a policy on an environment. CleanRL's names (--num-envs, --num-steps, --update-epochs ...) work too."""

    env: Annotated[str, tyro.conf.Positional] = ""
    """A Gymnasium id, envpool:ID, or module:attribute of a class or factory of your own."""
    preset: str = ""
    """atari: Gymnasium's wrappers for Atari and PPO's usual numbers for them, as defaults; options given here win."""
    config: Path | None = None
    """Defaults from a TOML file, or from the config.json of another run; options given here win."""
    resume: Path | None = None
    """Continue the run of a run directory or checkpoint, bit for bit; --total-timesteps may be raised."""
    run_dir: Path | None = None
    """Where results go; runs/<env>__<algorithm>__<seed>__<time> if not given."""
    seed: int | None = None
    """Root of every random number of the run; drawn and recorded if not given."""
    env_kwargs: str = "{}"
    """Keyword arguments of the environment, as JSON."""
    wrappers: tuple[str, ...] = ()
    """Wrappers as module:attribute, the last one outermost; a wrapper's arguments follow it as JSON, in quotes."""
    action_repeat: int = 1
    """Send every action this many times and sum the rewards."""
    device: str = "auto"
    """SB3's name of --learner-device; auto leaves it as it is."""
    policy: tyro.conf.OmitArgPrefixes[PolicyConfig] = field(default_factory=PolicyConfig)
    algorithm: _Algorithm = "ppo"
    learning: tyro.conf.OmitArgPrefixes[PpoConfig] = field(default_factory=PpoConfig)
    topology: tyro.conf.OmitArgPrefixes[TopologyConfig] = field(default_factory=TopologyConfig)
    session: tyro.conf.OmitArgPrefixes[SessionConfig] = field(default_factory=SessionConfig)
    tuning: tyro.conf.OmitArgPrefixes[TuneOptions] = field(default_factory=TuneOptions)
    schedule: Path | None = None
    """Replay an asynchronous run inline, to the same bits: its schedule.jsonl, with --config its config.json."""
    trust: bool = False
    """Import and call what --resume or --config names (module:attribute, kwargs, wrappers) without asking."""
    wandb: bool = False
    """Send metrics to Weights & Biases as well; with --resume, to the same W&B run."""
    wandb_project: str = "headrace"
    """Its project."""
    wandb_entity: str = ""
    """Its user or team; W&B's default if not given."""
    wandb_name: str = ""
    """The run's name there; drawn by W&B if not given."""
    wandb_mode: Literal["", "online", "offline", "disabled"] = ""
    """online, offline or disabled; if not given, the environment variable WANDB_MODE, else online."""
    quiet: bool = False
    """No live view."""
    dry_run: bool = False
    """Print the resolved plan and why, and stop."""


def _options_for(name: str) -> type[TrainOptions]:
    """The options with those of an algorithm in the place of PPO's."""
    if name not in ALGORITHMS:
        raise UsageError(f"--algorithm: expected one of {', '.join(ALGORITHMS)}, got {name!r}")
    if name == TrainOptions.algorithm:
        return TrainOptions
    config: Any = ALGORITHMS[name]
    changed = [
        ("algorithm", _Algorithm, field(default=name)),
        ("learning", Annotated[config, tyro.conf.OmitArgPrefixes], field(default_factory=config)),
        (
            "topology",
            tyro.conf.OmitArgPrefixes[TopologyConfig],
            field(default_factory=partial(TopologyConfig, n_steps=config.default_n_steps)),
        ),
    ]
    made: Any = make_dataclass("TrainOptions", changed, bases=(TrainOptions,), frozen=True)
    made.__doc__ = f"{TrainOptions.__doc__} Options of --algorithm {name}."
    options: type[TrainOptions] = made
    return options


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    argv = translate([f"--env-id{one[5:]}" if one.split("=")[0] == "--env" else one for one in argv])
    if value_of("--resume", argv) is not None and not {"-h", "--help"} & set(argv):
        return _resume(argv)
    options = _parse(argv)
    if not options.env:
        raise UsageError("expected an environment: headrace train ENV, or --resume RUN")
    names = given(argv, options.config)
    require_fitting(options.tuning, names, options.schedule is not None)
    if "n_eval_episodes" in names and not options.session.eval_every:
        raise UsageError("--n-eval-episodes: expected --eval-every as well")
    config = _run_config(options)
    _require_consent(argv, options, config.env)
    find_own_modules(config.env.encode())
    with _early_lock(options.run_dir, options.dry_run) as lock:
        from headrace.api.model import Model

        steps, found = options.session.total_timesteps, None
        if options.tuning.tune and not options.dry_run:
            found = tuned(config, options.tuning, names)
            config = found.config
        with Model.from_config(config, schedule=options.schedule, steps=steps) as model:
            if options.dry_run:
                print(model.plan())
                if options.tuning.tune:
                    print(intended(config, options.tuning, names))
                return 0
            return _train(model, options, options.run_dir, lock, found)


@contextmanager
def _early_lock(run_dir: Path | None, dry_run: bool) -> Iterator[RunLock | None]:
    """The lock of a directory that will be written to, if it holds a run: before torch is loaded and anything read."""
    lock = None if run_dir is None or dry_run else RunLock.take_early(run_dir)
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


def _parse(argv: list[str], defaults: TrainOptions | None = None) -> TrainOptions:
    path, name = value_of("--config", argv), value_of("--algorithm", argv)
    if name is None and path is not None:
        name = flat(read_config(Path(path))[0]).get("algorithm")
    is_of_run = defaults is not None or (path is not None and path.endswith(".json"))
    if defaults is None:
        defaults = _options_for(TrainOptions.algorithm if name is None else str(name))()
        defaults = _with_preset(defaults, value_of("--preset", argv))
    if path is not None:
        defaults = with_file(defaults, Path(path))
    if is_of_run:
        defaults = replace(defaults, topology=with_places_open(defaults.topology, argv, path))
    return parse(type(defaults), argv, "train", defaults)


def _with_preset(options: TrainOptions, name: str | None) -> TrainOptions:
    """A preset's numbers as defaults; its environment is dressed by `_spec`."""
    chosen = preset(name)
    if chosen.options and options.algorithm != TrainOptions.algorithm:
        raise UsageError(f"--preset {name}: its numbers are those of {TrainOptions.algorithm}; leave --algorithm out")
    for key, value in chosen.options.items():
        options = with_option(options, key, value, f"--preset {name}")
    if chosen.total_timesteps is None:
        return options
    return with_option(options, "total_timesteps", chosen.total_timesteps, f"--preset {name}")


def _typed(argv: list[str], options: TrainOptions) -> TrainOptions:
    """What the command line alone names; numbers are as they are resolved."""
    blank = replace(options, env="", env_kwargs="{}", wrappers=(), run_dir=None, schedule=None)
    return parse(type(options), argv, "train", blank)


def _require_consent(argv: list[str], options: TrainOptions, env: EnvSpec) -> None:
    """What a --config file names must be the user's words too, unless --trust says otherwise."""
    if options.config is None or options.trust:
        return
    typed = _typed(argv, options)
    places = {"run_dir": (options.run_dir, typed.run_dir), "schedule": (options.schedule, typed.schedule)}
    require_own_words(options.config, env, _spec(typed), places)


def _resume(argv: list[str]) -> int:
    """The run's own options are the defaults; where actors run may be changed, what decides its bits may not."""
    from headrace.checkpoints.run_directory import has_checkpoints

    if value_of("--preset", argv) is not None:
        raise UsageError("--resume goes on with the run as it was, its preset included: leave --preset out")
    require_no_tuning(given(argv, None))
    named, elsewhere = Path(value_of("--resume", argv) or ""), value_of("--run-dir", argv)
    home = home_of(named) if (named / "manifest.json").exists() else named
    with _early_lock(home if elsewhere is None else Path(elsewhere), "--dry-run" in argv) as lock:
        if (named / "config.json").is_file() and not has_checkpoints(named):
            return _begin_again(argv, named, lock)
        return _resume_locked(argv, named, lock)


def _begin_again(argv: list[str], home: Path, lock: RunLock | None) -> int:
    """A run that ended before its first checkpoint: from its beginning, as --config RUN/config.json would have it."""
    argv = ["--config", str(home / "config.json"), *argv]
    options = _parse(argv)
    config, run_dir = _run_config(options), options.run_dir or home
    _require_consent(argv, options, config.env)
    find_own_modules(config.env.encode())
    warn(f"{home} has no checkpoint: the run ended before its first one, and begins again with its config.json")
    from headrace.api.model import Model

    is_new, steps = run_dir != home, options.session.total_timesteps
    with Model.from_config(config, schedule=options.schedule, is_new=is_new, steps=steps) as model:
        if options.dry_run:
            print(model.plan())
            return 0
        return _train(model, options, run_dir, lock)


def _resume_locked(argv: list[str], named: Path, lock: RunLock | None) -> int:
    from headrace.api.model import Model
    from headrace.checkpoints.snapshot import find_latest
    from headrace.loading import admit, require_sound
    from headrace.session_result import unfinished

    found, snapshot, damaged = find_latest(named)
    for line in damaged:
        warn(line)
    require_sound(snapshot)
    saved, home = decode(snapshot.state["config"]), home_of(found)
    options = _parse(argv, _options(saved, saved_session(home)))
    admit(snapshot, trust=options.trust, named=_spec(_typed(argv, options)))
    asked = _run_config(options)
    require_same(saved, asked, options.algorithm)
    _require_consent(argv, options, _spec(_typed(argv, options)))  # of --config; the environment is the run's
    find_own_modules(saved.env.encode())
    run_dir, total = options.run_dir or home, options.session.total_timesteps
    broken_off = None if run_dir is None or lock is None else unfinished(run_dir)
    learns_on = asked.algorithm.learner_device
    with Model.from_snapshot(
        snapshot, place=asked.topology, trust=True, total_timesteps=total, learner_device=learns_on
    ) as model:  # it has consent
        if options.dry_run:
            print(f"{'resumes':<12} {found.name} at {model.num_timesteps:,} of {total:,} steps")
            print(model.plan())
            return 0
        if model.num_timesteps >= total:
            print(
                f"nothing to do: the run has made {model.num_timesteps:,} steps, and --total-timesteps is {total:,}; "
                f"raise it to go on"
            )
            return 0
        if broken_off is not None:
            warn(broken_off)
        return _train(model, options, run_dir, lock)


def _wandb(options: TrainOptions) -> WandbConfig | None:
    """Before anything starts: what is missing is said at once."""
    from headrace.telemetry.wandb_sink import wandb_config

    names = ("project", "entity", "name", "mode")
    return wandb_config({name: getattr(options, f"wandb_{name}") for name in names} if options.wandb else None)


def _train(
    model: Model, options: TrainOptions, run_dir: Path | None, lock: RunLock | None, found: Tuned | None = None
) -> int:
    from headrace.checkpoints.run_directory import default_run_dir
    from headrace.extras import left_out
    from headrace.views.number_format import decimal

    config, wandb = model.parts.config, _wandb(options)
    run_dir = run_dir or default_run_dir(config.env.name, config.algorithm.name, config.seed)
    if found is not None:
        note(model, found)
    result = model.train(options.session, run_dir, show=not options.quiet, lock=lock, wandb=wandb)
    assert result.exit_code is not None
    mean = "no episode ended" if result.mean_return is None else f"mean return {decimal(result.mean_return)}"
    try:
        print(
            f"{result.exit_reason}: {result.steps:,} steps, {result.sps:,.0f} steps/s, {mean}; "
            f"weights {result.weights_sha256[:12]}"
        )
        print(f"results in {run_dir}{os.sep}, report in {run_dir / 'report.html'}", flush=True)
        if result.exit_reason.startswith("SIG"):
            print(f"go on with: headrace train --resume {shlex.quote(str(run_dir))}", flush=True)
        if missing := left_out("tensorboard", "plots"):
            print(missing, flush=True)
    except OSError:
        drop_stdout()  # nobody may read on (`| head`), the disk may be full: the run has ended as it has
    try:
        model.close()
    except HeadraceError as error:  # the run is done all the same
        explain(error, "warning")
    return result.exit_code


def _options(config: RunConfig, session: SessionConfig) -> TrainOptions:
    spec = config.env
    return _options_for(config.algorithm.name)(
        env=str(spec.env),
        seed=config.seed,
        env_kwargs=json.dumps(dict(spec.kwargs)),
        wrappers=tuple(str(wrapper) for wrapper in spec.wrappers),
        action_repeat=spec.action_repeat,
        policy=config.policy,
        algorithm=config.algorithm.name,
        learning=config.algorithm,  # type: ignore[arg-type]  # as that class of options has it
        topology=config.topology,
        session=session,
    )


def _run_config(options: TrainOptions) -> RunConfig:
    learning = options.learning
    if options.device != "auto":
        learning = replace(learning, learner_device=options.device)
    seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
    return RunConfig(_spec(options), seed, options.policy, learning, options.topology)


def _spec(options: TrainOptions) -> EnvSpec:
    chosen = preset(options.preset)
    kwargs = chosen.env_kwargs | env_kwargs(options.env_kwargs)
    return EnvSpec(options.env, kwargs, options.wrappers or chosen.wrappers, options.action_repeat)


def changed(config: RunConfig, session: SessionConfig, argv: list[str]) -> tuple[RunConfig, SessionConfig]:
    """A run's configuration with some options, as a user would type them."""
    options = _parse(translate(argv), _options(config, session))
    spec = replace(config.env, action_repeat=options.action_repeat)  # which may be what can't be typed
    return replace(_run_config(options), env=spec, extractors=config.extractors), options.session
