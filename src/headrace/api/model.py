"""A model: a run that learns, predicts, saves and loads, whatever its algorithm. PPO and IMPALA are models.

    learn --> session --> run.update ... --> result        save --> directory --load--> goes on, bit for bit

A signal may break off collecting; the model is then as after the last update, and goes on from there by replay.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy.typing as npt

from headrace.api.arguments import copied, extractors_given, source_of
from headrace.api.attributes import Sb3Attributes
from headrace.api.callbacks import Calls, Logger
from headrace.api.evaluation import evaluate_parts
from headrace.api.going_on import config_of, require_retaken
from headrace.api.learn_arguments import folder, learn_config, log_run, require_effect, shown
from headrace.api.other_names import LEARN, OF_CALLS
from headrace.api.plan_text import described, facts, plan_text
from headrace.api.prediction import predicted
from headrace.api.tuning import Tuned
from headrace.api.vec_env import VecEnv, play_envs
from headrace.api.whereabouts import whereabouts
from headrace.build import build_run
from headrace.checkpoints.run_directory import open_run_dir
from headrace.checkpoints.snapshot import Snapshot, find_latest, save
from headrace.collecting.schedule import Schedule
from headrace.collecting.topology import TopologyConfig
from headrace.envs.instances import Instance, single
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.errors import HeadraceError, UsageError
from headrace.evaluation.in_passing import InPassing
from headrace.keywords import in_words
from headrace.loading import admit, read_from, require_fit, require_sound
from headrace.plain_text import message_of
from headrace.policies.config import Extractors
from headrace.policies.policy import Module
from headrace.policies.threads import torch_threads
from headrace.run_config import RunConfig, SessionConfig, encode
from headrace.run_lock import RunLock
from headrace.session import Session
from headrace.session_files import SessionFiles
from headrace.session_result import Result, with_not_closed
from headrace.telemetry.sinks import Record
from headrace.telemetry.wandb_sink import WandbConfig, started, wandb_config
from headrace.views.terminal import TerminalView
from headrace.weights.saving import load as load_weights
from headrace.weights.saving import publish_changed

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Callback = Callable[[Record], bool | None]


class Model(Sb3Attributes):
    """A run over environments that headrace builds, seeds and steps."""

    algorithm: ClassVar[str | None] = None  # None: any
    result: Result | None = None  # how the last learn ended
    tuned: Tuned | None = None  # what was tried before the run was built, if that was asked for
    shown_steps: int | None = None  # while callbacks go through a rollout: the steps up to its present row
    _verbose = _predictions = 0
    _log_folder: Path | None = None  # SB3's tensorboard_log
    _log_run: Path | None = None  # the folder in it that the last learn wrote to
    _instance: gym.Env[Any, Any] | None = None  # the environment that was passed, if it was an instance
    _played: VecEnv | None = None  # get_env
    _is_new = True  # has no run directory yet and was not restored: it may not go on in another run's
    _is_torn = False  # collecting was broken off: the environments are beyond the last commit
    _is_closed = False
    _check: InPassing | None = None  # of the first episodes, begun by the first session

    @whereabouts.kept()
    def _set_up(self, config: RunConfig, module: Module | None, *more: Any) -> None:
        self._run, self._parts = build_run(config, copied(module), *more)

    @classmethod
    def from_config(cls, config: RunConfig, module: Module | None = None,
                    schedule: str | os.PathLike[str] | None = None, is_new: bool = True,
                    steps: int | None = None) -> Self:  # fmt: skip
        """A model from a whole configuration, as the command line and checkpoints have it.

        With the schedule.jsonl of an asynchronous run it replays that run inline, to the same bits. One that is not new
        may go on in the directory of a run with the same configuration. `steps`: what it will train for, if known.
        """
        recorded = None if schedule is None else Schedule.read(Path(schedule), config.topology.n_steps)
        model = cls.__new__(cls)
        model._is_new = is_new
        model._set_up(config, module, recorded, steps)
        return model

    def plan(self) -> str:
        """What will run, and why."""
        return plan_text(self._parts, self._run.algorithm)

    @in_words(LEARN)
    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int = 1,
        tb_log_name: str = "",
        reset_num_timesteps: bool = False,
        progress_bar: bool = False,
        run_dir: str | os.PathLike[str] | None = None,
        wandb: Any = None,
        **session: Any,
    ) -> Self:
        """Train for that many more steps. With a run_dir, metrics, checkpoints, result and report are kept there.

        `callback` is a function that gets every update's record, an object with SB3's methods, or a list of both; False
        ends training. Metrics are written every `log_interval` updates. With the model's tensorboard_log, the run
        directory is <tensorboard_log>/<tb_log_name>_1, _2 ... `reset_num_timesteps` counts from 0 again.
        `wandb`: True, a project, or a dict of project, entity, name, mode: metrics go to Weights & Biases as well.
        Further keywords: eval_every, n_eval_episodes, stop_reward, checkpoint_every, keep_checkpoints,
        keep_episodes_mb, check_episodes, stall_after_s, tags. With progress_bar, or verbose=1, the terminal shows the
        run. Ctrl-C ends it at the last update, as KeyboardInterrupt; the model can then be saved or learn on.
        """
        config = learn_config(total_timesteps, tb_log_name, log_interval=log_interval, **session)
        require_effect(session, tb_log_name, run_dir, self._log_folder)
        directory = None if run_dir is None else folder("run_dir", run_dir)
        if directory is None and self._log_folder is not None:
            last = None if reset_num_timesteps else self._log_run
            directory = self._log_run = log_run(self._log_folder, last, tb_log_name, type(self).__name__)
        more = replace(config, total_timesteps=(not reset_num_timesteps) * self._run.steps + config.total_timesteps)
        calls = Calls(callback, self, more.total_timesteps)
        if reset_num_timesteps:
            self._run.updates = self._run.steps = 0
        calls.start()
        show = progress_bar or self._verbose > 0
        result = self.train(more, directory, show, calls or None, wandb=wandb_config(wandb))
        calls.end()
        if result.exit_reason in ("SIGINT", "SIGTERM", "SIGHUP"):
            raise KeyboardInterrupt if result.exit_reason == "SIGINT" else SystemExit(result.exit_code)
        return self

    def train(
        self,
        config: SessionConfig,
        run_dir: Path | None,
        show: bool,
        callback: Callback | None = None,
        lock: RunLock | None = None,
        wandb: WandbConfig | None = None,
    ) -> Result:
        """Train up to config.total_timesteps steps in all, counted from the run's start.

        `lock` is the run directory's, if the caller holds it already; it is released here.
        """
        if self._is_closed:
            raise UsageError("this model was closed; make or load another one")
        if self._is_torn:
            self._rewind()
        publish_changed(self._parts.weights)  # model.policy.load_state_dict(...) before this
        encoded = encode(self._parts.config) | {"session": asdict(config)}
        self._last_dir = home = run_dir and whereabouts.absolute(run_dir)
        self._sinks = partial(started, wandb, home, encoded)
        if run_dir is None or home is None:
            return self._train(config, None, show, callback)
        with whereabouts.as_typed(run_dir), open_run_dir(home, encoded, self._is_new, lock):
            self._is_new = False
            if self.tuned is not None:
                self.tuned.keep(home)  # now: the run may be killed
            return self._train(config, home, show, callback)

    def _train(self, config: SessionConfig, run_dir: Path | None, show: bool, callback: Callback | None) -> Result:
        parts, view, say = self._parts, None, (lambda text: None)
        if show:
            view = TerminalView(parts.config.env.name, config.total_timesteps, facts(parts, self._run.algorithm))
            parts.reader.say = say = view.message
        place, notes, nan_policy = parts.topology, parts.topology.reasons, parts.config.topology.nan_policy
        if nan_policy != "raise" and config.keep_episodes_mb:  # a replay would see what was mended, not what is stored
            notes = (*notes, f"nan_policy={nan_policy}: episodes are not recorded, so headrace replay has none")
            config = replace(config, keep_episodes_mb=0)
        files = SessionFiles(run_dir, config, len(place.shards), place.max_lag > 0, parts.config.seed, self._sinks,
                             say)  # fmt: skip
        parts.reader.is_recording = files.is_recording
        check = self._checked_in_passing(config.check_episodes)
        play = partial(evaluate_parts, parts)
        called = callback if isinstance(callback, Calls) or callback is None else lambda record, _: callback(record)
        session = Session(
            self._run, config, play, files, check, run_dir, view, called, notes, place.forecast, place.encode()
        )
        self._is_torn = True  # until the session comes to an orderly end
        with torch_threads(self._run.algorithm.threads), whereabouts.kept():  # once for all updates
            self.result = session.train()
        self._is_torn = self.result.exit_code in (129, 130, 143)
        return self.result

    @in_words(OF_CALLS)
    def predict(self, observation: Any, state: Any = None, episode_start: Any = None,
                deterministic: bool = False, action_masks: Any = None) -> tuple[Array, Any]:  # fmt: skip
        """Actions for one observation or a batch, as the environment wants them; `state` is a recurrent policy's."""
        draw = None if deterministic else self._predictions
        self._predictions += not deterministic
        return predicted(self._parts, observation, draw, state, episode_start, action_masks)

    @in_words(OF_CALLS)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to go on, or to predict, into a directory."""
        save(self._snapshot(), whereabouts.absolute(Path(path)))

    @classmethod
    @in_words(OF_CALLS)
    def load(cls, path: str | os.PathLike[str], env: EnvSource | EnvSpec | Instance | VecEnv | None = None,
             policy: Module | None = None, weights_only: bool = False, topology: str | None = None,
             workers: int | str | None = None, trust: bool = False, policy_kwargs: Mapping[str, Any] | None = None,
             verbose: int = 0, tensorboard_log: str | os.PathLike[str] | None = None,
             **options: Any) -> Self:  # fmt: skip
        """A model from `save`, a checkpoint or a run directory, ready to go on learning bit for bit.

        With `weights_only` it predicts and evaluates: live episodes are not replayed, learning starts anew, on the CPU.
        `topology` and `workers` place actors elsewhere, which changes no bit of a synchronous run; so do the options
        inference, inference_servers, double_buffering ... learner_device, inference_device or device="cpu" (both)
        change a device, and a GPU rounds in its own way. Pass functions again, which can't be saved: environment,
        module, schedule. A checkpoint that you did not make may name a registered id. For module:attribute, kwargs,
        wrappers pass `env`, for feature extractors `policy_kwargs`; or say `trust`.
        """
        _, snapshot, damaged = find_latest(whereabouts.reachable(Path(path)))
        for line in damaged:
            warnings.warn(line, stacklevel=2)
        require_sound(snapshot)
        require_retaken(options, snapshot.state["config"]["algorithm"]["name"])
        options |= {"topology": topology, "workers": workers, "extractors": extractors_given(policy_kwargs)}
        seen = shown(verbose, tensorboard_log)
        model = cls.from_snapshot(snapshot, source_of(env), policy, weights_only, trust=trust, **options)
        model._instance, (model._verbose, model._log_folder) = single(env), seen
        return model

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, env: EnvSource | EnvSpec | None = None, policy: Module | None = None,
                      weights_only: bool = False, place: TopologyConfig | None = None, trust: bool = False,
                      total_timesteps: int | None = None, extractors: Extractors | None = None,
                      **options: Any) -> Self:  # fmt: skip
        """The same, from a snapshot that is already in memory; a `place` is the whole of where it runs."""
        admit(snapshot, env, trust, has_policy=extractors is not None or policy is not None)
        config = config_of(snapshot.state["config"], env, policy, place, extractors, weights_only, options)
        if cls.algorithm not in (None, config.algorithm.name):
            raise UsageError(
                f"expected a checkpoint of {cls.algorithm}, got one of {config.algorithm.name}; "
                f"load it with hr.{config.algorithm.name.upper()}"
            )
        model = cls.from_config(config, policy, steps=total_timesteps and total_timesteps - snapshot.state["steps"])
        try:
            require_fit(snapshot, model._parts.fit(), weights_only)
            if weights_only:
                load_weights(model._parts.weights, snapshot.weights)
            else:
                model._parts.require_fit(snapshot)
                with read_from(snapshot), whereabouts.kept():
                    model._run.restore(snapshot)
                model._is_new = False
        except BaseException:
            model.close()
            raise
        return model

    def close(self) -> None:
        """Close the environments. The error of one that can't be closed is kept in the result, and raised."""
        self._is_closed = True
        if self._played is not None:
            self._played.close()
        try:
            self._run.close()
        except HeadraceError as error:
            if self.result is not None:
                self.result = with_not_closed(self.result, self._last_dir, message_of(error))
            raise

    def __repr__(self) -> str:
        return described(type(self).__name__, self._parts, self.num_timesteps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except Exception as second:
            if error is None:
                raise
            logger.warning("not all could be closed: %s", message_of(second))  # and the error goes on its way

    @property
    def num_timesteps(self) -> int:
        """Real environment steps so far."""
        return self._run.steps if self.shown_steps is None else self.shown_steps

    @cached_property
    def logger(self) -> Logger:
        """`logger.record(name, value)`, from a callback: one more entry of the metrics."""
        return Logger()

    @whereabouts.kept()
    def get_env(self) -> VecEnv:
        """Environments to play in, with SB3's four-value step: the instance that was passed, or ones of their own."""
        if self._played is None or self._played.is_closed:
            self._played = play_envs(self._parts.config, self._instance)
        return self._played

    def get_vec_normalize_env(self) -> None: ...  # SB3's callbacks ask for it; there is none

    @property
    def ep_info_buffer(self) -> deque[dict[str, float]]:
        """The last `stats_window_size` episodes: return "r" and length "l"."""
        return deque({"r": total, "l": length} for total, length in self._parts.reader.journal.results.recent)

    policy = property(lambda self: self._parts.module, doc="The torch module that is trained.")
    run = property(lambda self: self._run, doc="The run, for those who want to look.")
    parts = property(lambda self: self._parts, doc="What the run is made of, for those who want to look.")

    def _checked_in_passing(self, count: int) -> InPassing:
        """What is checked on the way, by all sessions together."""
        config, reader = self._parts.config, self._parts.reader
        if self._check is None or not count:
            self._check = InPassing.of(config.env, reader.journal.seed_of, count, config.topology.nan_policy)
        reader.notices.first_episodes = self._check.episodes
        return self._check

    def _snapshot(self) -> Snapshot:
        if not self._run.is_whole:
            raise HeadraceError("the last update was broken off in the middle; load the last checkpoint instead")
        return self._run.snapshot()

    @whereabouts.kept()
    def _rewind(self) -> None:
        """Back to the last commit, by replay, with fresh environments and the same module."""
        parts, snapshot = self._parts, self._snapshot()
        self._run.close()
        run, fresh = build_run(parts.config, parts.module.cpu(), parts.schedule)  # on its way to where it was
        try:
            fresh.require_fit(snapshot)
            run.restore(snapshot)
        except BaseException:
            run.close()
            raise
        self._run, self._parts = run, fresh
