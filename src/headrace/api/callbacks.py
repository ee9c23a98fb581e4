"""Callbacks of `learn`: plain functions, Stable-Baselines3's kind of objects, and lists of both.

    update -> record -> function(record)                                              False ends training
                     -> object: on_rollout_end, then on_step once per row of the rollout, on_rollout_start

Environments step in workers, so an object's `on_step` is called after the rollout, once for each of its rows, with
`num_timesteps` counting along: frequencies mean what they mean in Stable-Baselines3. `locals` holds the record of the
update instead of single steps. Does not know how training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.api.evaluation import evaluate_policy
from headrace.errors import UsageError
from headrace.telemetry.sinks import Record

if TYPE_CHECKING:
    from headrace.api.model import Model

Function = Callable[[Record], bool | None]
_METHODS = ("on_step", "on_training_start", "on_training_end", "on_rollout_start", "on_rollout_end")


class BaseCallback:
    """A callback as in Stable-Baselines3: override `_on_step` and what else is needed; False ends training."""

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose
        self.n_calls = 0
        self.num_timesteps = 0
        self.locals: dict[str, Any] = {}
        self.globals: dict[str, Any] = {}
        self.parent: BaseCallback | None = None
        self.model: Model

    @property
    def logger(self) -> Logger:
        """`logger.record("name", value)`: an entry of the metrics."""
        return self.model.logger

    @property
    def training_env(self) -> Any:
        """The model's environments to look at; those that train step in workers."""
        return self.model.get_env()

    def init_callback(self, model: Model) -> None:
        """Called once, before training starts."""
        self.model = model
        self._init_callback()

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Called once, when training starts."""
        self.locals, self.globals = locals_, globals_
        self.num_timesteps = self.model.num_timesteps
        self._on_training_start()

    def on_rollout_start(self) -> None:
        """Called before a rollout."""
        self._on_rollout_start()

    def on_step(self) -> bool:
        """Called for each row of a rollout; False ends training."""
        self.n_calls += 1
        self.num_timesteps = self.model.num_timesteps
        return self._on_step()

    def on_rollout_end(self) -> None:
        """Called after a rollout and its update."""
        self._on_rollout_end()

    def on_training_end(self) -> None:
        """Called once, when training has ended."""
        self._on_training_end()

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """What there is to see of the update."""
        self.locals.update(locals_)

    def _init_callback(self) -> None: ...

    def _on_training_start(self) -> None: ...

    def _on_rollout_start(self) -> None: ...

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None: ...

    def _on_training_end(self) -> None: ...


class CheckpointCallback(BaseCallback):
    """Saves the model every `save_freq` steps of each environment, as <save_path>/<name_prefix>_<steps>_steps."""

    def __init__(self, save_freq: int, save_path: str, name_prefix: str = "rl_model", verbose: int = 0) -> None:
        super().__init__(verbose)
        _require_positive("save_freq", save_freq)
        self.save_freq, self.save_path, self.name_prefix = save_freq, Path(save_path), name_prefix

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            path = self.save_path / f"{self.name_prefix}_{self.num_timesteps}_steps"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.model.save(path)
            if self.verbose:
                print(f"Saved {path}")
        return True


class StopTrainingOnRewardThreshold(BaseCallback):
    """For EvalCallback's `callback_on_new_best`: ends training when the best mean reward reaches the threshold."""

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.reward_threshold = reward_threshold

    def _on_step(self) -> bool:
        if not isinstance(self.parent, EvalCallback):
            raise UsageError("StopTrainingOnRewardThreshold goes into EvalCallback(callback_on_new_best=...)")
        return self.parent.best_mean_reward < self.reward_threshold


class EvalCallback(BaseCallback):
    """Evaluates every `eval_freq` steps of each environment; keeps the best model and evaluations.npz."""

    def __init__(
        self,
        eval_env: Any = None,
        callback_on_new_best: BaseCallback | None = None,
        callback_after_eval: BaseCallback | None = None,
        n_eval_episodes: int = 5,
        eval_freq: int = 10_000,
        log_path: str | None = None,
        best_model_save_path: str | None = None,
        deterministic: bool = True,
        render: bool = False,
        verbose: int = 1,
        warn: bool = True,
    ) -> None:
        super().__init__(verbose)
        _require_positive("eval_freq", eval_freq)
        self.eval_env, self.n_eval_episodes, self.eval_freq = eval_env, n_eval_episodes, eval_freq
        self.log_path, self.best_model_save_path = log_path, best_model_save_path
        self.deterministic, self.render = deterministic, render
        self.best_mean_reward, self.last_mean_reward = -np.inf, -np.inf
        self._on_best, self._after = callback_on_new_best, callback_after_eval
        self._seen: list[tuple[int, list[float], list[int]]] = []

    def _init_callback(self) -> None:
        for child in (self._on_best, self._after):
            if child is not None:
                child.parent = self
                child.init_callback(self.model)

    def _on_step(self) -> bool:
        if self.n_calls % self.eval_freq:
            return True
        rewards, lengths = evaluate_policy(
            self.model, self.eval_env, self.n_eval_episodes, self.deterministic, self.render,
            return_episode_rewards=True,
        )  # fmt: skip
        assert isinstance(rewards, list)
        assert isinstance(lengths, list)
        self.last_mean_reward = float(np.mean(rewards))
        self.logger.record("eval/mean_reward", self.last_mean_reward)
        self.logger.record("eval/mean_ep_length", float(np.mean(lengths)))
        if self.verbose:
            print(f"Eval num_timesteps={self.num_timesteps}, episode_reward={self.last_mean_reward:.2f} "
                  f"+/- {np.std(rewards):.2f}, mean length {np.mean(lengths):.1f}")  # fmt: skip
        self._seen.append((self.num_timesteps, rewards, lengths))
        if self.log_path is not None:
            self._write(Path(self.log_path))
        goes_on = True
        if self.last_mean_reward > self.best_mean_reward:
            self.best_mean_reward = self.last_mean_reward
            if self.best_model_save_path is not None:
                Path(self.best_model_save_path).mkdir(parents=True, exist_ok=True)
                self.model.save(Path(self.best_model_save_path) / "best_model")
            goes_on = self._on_best is None or self._on_best.on_step()
        return goes_on and (self._after is None or self._after.on_step())

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        steps, rewards, lengths = zip(*self._seen, strict=True)
        np.savez(folder / "evaluations.npz", timesteps=steps, results=rewards, ep_lengths=lengths)


class Logger:
    """What callbacks have recorded since the last update."""

    def __init__(self) -> None:
        self.name_to_value: dict[str, float] = {}

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        """An entry of the next record; `exclude` is for Stable-Baselines3's signature."""
        self.name_to_value[key] = float(value)

    def record_mean(self, key: str, value: float | None, exclude: Any = None) -> None:
        """The same."""
        if value is not None:
            self.record(key, value)

    def dump(self, step: int = 0) -> None:
        """Entries are written with every update."""

    def taken(self) -> dict[str, float]:
        """All entries; they are gone here."""
        values, self.name_to_value = self.name_to_value, {}
        return values


class Calls:
    """All callbacks of one call of learn, as the session sees them: one function of an update's record."""

    def __init__(self, callback: Any, model: Model, rows: int, n_envs: int) -> None:
        every = list(_flat(callback))
        self._functions: list[Function] = [one for one in every if not hasattr(one, "on_step")]
        self._objects = [one for one in every if hasattr(one, "on_step")]
        self._model, self._rows, self._n_envs = model, rows, n_envs
        for one in self._objects:
            for name in _METHODS:
                if not callable(getattr(one, name, None)):
                    raise UsageError(f"callback: expected an object with {', '.join(_METHODS)}; {one!r} lacks {name}")

    def __bool__(self) -> bool:
        return bool(self._functions or self._objects)

    def start(self) -> None:
        """Training starts."""
        for one in self._objects:
            one.init_callback(self._model)
            one.on_training_start({"self": self._model}, {})
            one.on_rollout_start()

    def __call__(self, record: Record) -> bool:
        """After an update; False ends training. What objects have recorded is in the record afterwards."""
        answers = [function(record) for function in self._functions]  # all are called, whatever the first one says
        goes_on = False not in answers
        model, steps = self._model, self._model.run.steps
        for one in self._objects:
            one.update_locals({"record": record})
            one.on_rollout_end()
        try:
            for row in range(self._rows if self._objects else 0):
                model.shown_steps = max(0, steps - (self._rows - row - 1) * self._n_envs)
                if False in [one.on_step() for one in self._objects]:
                    goes_on = False
                    break
        finally:
            model.shown_steps = None
        record.update(model.logger.taken())
        if goes_on:
            for one in self._objects:
                one.on_rollout_start()
        return goes_on

    def end(self) -> None:
        """Training has ended."""
        for one in self._objects:
            one.on_training_end()


def _flat(callback: Any) -> Iterable[Any]:
    if callback is None:
        return
    if isinstance(callback, Sequence):
        for one in callback:
            yield from _flat(one)
    elif callable(callback) or hasattr(callback, "on_step"):
        yield callback
    else:
        raise UsageError(
            f"callback: expected a function of the update's record, an object with on_step, or a list of them, "
            f"got {callback!r}"
        )


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{name}: expected at least 1, got {value!r}")
