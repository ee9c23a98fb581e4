"""Stable-Baselines3's callbacks that are ready to use: checkpoints, evaluations, and reasons to stop.

on_step, once per row of a rollout --> a multiple of its frequency? --> save, evaluate, or call another callback
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headrace.api.callbacks import BaseCallback, object_of
from headrace.api.evaluation import played
from headrace.api.other_names import OF_CALLS
from headrace.errors import UsageError, plain, whole
from headrace.keywords import in_words


@in_words(OF_CALLS)
class CheckpointCallback(BaseCallback):
    """Saves the model every `save_freq` steps of each environment, as <save_path>/<name_prefix>_<steps>_steps."""

    def __init__(
        self,
        save_freq: int,
        save_path: str,
        name_prefix: str = "rl_model",
        save_replay_buffer: bool = False,
        save_vecnormalize: bool = False,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.save_freq = whole("save_freq", save_freq, 1)
        if save_replay_buffer:  # save_vecnormalize: what normalises is saved anyway
            raise UsageError("save_replay_buffer: there is none; a checkpoint holds all that a run needs to go on")
        self.save_path, self.name_prefix = Path(save_path), name_prefix
        self._home = Path().absolute()  # environments may change the working directory

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            name = f"{self.name_prefix}_{self.num_timesteps}_steps"
            folder = self._home / self.save_path
            folder.mkdir(parents=True, exist_ok=True)
            self.model.save(folder / name)
            if self.verbose:
                print(f"Saved {self.save_path / name}")
        return True


@in_words(OF_CALLS)
class EventCallback(BaseCallback):
    """One that calls another when something happens."""

    def __init__(self, callback: Any = None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback: BaseCallback | None = None if callback is None else object_of(type(self).__name__, callback)
        if self.callback is not None:
            self.callback.parent = self

    def _init_callback(self) -> None:
        if self.callback is not None:
            self.callback.init_callback(self.model)

    def _on_training_start(self) -> None:
        if self.callback is not None:
            self.callback.on_training_start(self.locals, self.globals)

    def _on_event(self) -> bool:
        return self.callback is None or self.callback.on_step()

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        """What there is to see, for the one that is called."""
        if self.callback is not None:
            self.callback.update_locals(locals_)


@in_words(OF_CALLS)
class EveryNTimesteps(EventCallback):
    """Calls another callback every `n_steps` steps, counted over all environments."""

    def __init__(self, n_steps: int, callback: Any) -> None:
        super().__init__(callback)
        self.n_steps, self.last_time_trigger = whole("n_steps", n_steps, 1), 0

    def _on_step(self) -> bool:
        if self.num_timesteps - self.last_time_trigger < self.n_steps:
            return True
        self.last_time_trigger = self.num_timesteps
        return self._on_event()


@in_words(OF_CALLS)
class StopTrainingOnMaxEpisodes(BaseCallback):
    """Ends training after `max_episodes` episodes for each environment, counted over all of them."""

    def __init__(self, max_episodes: int, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_episodes, self.n_episodes = whole("max_episodes", max_episodes, 1), 0

    def _on_step(self) -> bool:
        self.n_episodes += int(self.locals["dones"].sum())
        goes_on = self.n_episodes < self.max_episodes * len(self.locals["dones"])
        if self.verbose and not goes_on:
            print(f"Training ends: {self.n_episodes:,} episodes after {self.num_timesteps:,} steps")
        return goes_on


@in_words(OF_CALLS)
class StopTrainingOnRewardThreshold(BaseCallback):
    """For EvalCallback's `callback_on_new_best`: ends training when the best mean reward reaches the threshold."""

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        threshold: Any = plain(reward_threshold)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise UsageError(f"reward_threshold: expected a number, got {reward_threshold!r}")
        self.reward_threshold: float = threshold

    def _on_step(self) -> bool:
        if not isinstance(self.parent, EvalCallback):
            raise UsageError("StopTrainingOnRewardThreshold goes into EvalCallback(callback_on_new_best=...)")
        goes_on = self.parent.best_mean_reward < self.reward_threshold
        if self.verbose and not goes_on:
            print(f"Training ends: mean reward {self.parent.best_mean_reward:.2f}, wanted {self.reward_threshold:g}")
        return goes_on


@in_words(OF_CALLS)
class StopTrainingOnNoModelImprovement(BaseCallback):
    """For EvalCallback's `callback_after_eval`: ends training after so many evaluations without a new best one."""

    def __init__(self, max_no_improvement_evals: int, min_evals: int = 0, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_no_improvement_evals = whole("max_no_improvement_evals", max_no_improvement_evals, 0)
        self.min_evals = whole("min_evals", min_evals, 0)
        self.last_best_mean_reward, self.no_improvement_evals = -np.inf, 0

    def _on_step(self) -> bool:
        if not isinstance(self.parent, EvalCallback):
            raise UsageError("StopTrainingOnNoModelImprovement goes into EvalCallback(callback_after_eval=...)")
        best, before = self.parent.best_mean_reward, self.last_best_mean_reward
        self.last_best_mean_reward = best
        if self.n_calls <= self.min_evals:
            return True
        self.no_improvement_evals = 0 if best > before else self.no_improvement_evals + 1
        goes_on = self.no_improvement_evals <= self.max_no_improvement_evals
        if self.verbose and not goes_on:
            print(f"Training ends: no new best mean reward in {self.no_improvement_evals} evaluations")
        return goes_on


@in_words(OF_CALLS)
class EvalCallback(EventCallback):
    """Evaluates every `eval_freq` steps of each environment; keeps the best model and evaluations.npz.

    Where the last info of an episode has is_success, it logs eval/success_rate.
    """

    def __init__(
        self,
        eval_env: Any = None,
        callback_on_new_best: Any = None,
        callback_after_eval: Any = None,
        n_eval_episodes: int = 5,
        eval_freq: int = 10_000,
        log_path: str | None = None,
        best_model_save_path: str | None = None,
        deterministic: bool = True,
        render: bool = False,
        verbose: int = 1,
        warn: bool = True,
    ) -> None:
        super().__init__(callback_after_eval, verbose)
        self.eval_freq = whole("eval_freq", eval_freq, 1)
        self.n_eval_episodes = whole("n_eval_episodes", n_eval_episodes, 1)
        self.eval_env = eval_env
        self.callback_on_new_best: BaseCallback | None = None
        if callback_on_new_best is not None:
            self.callback_on_new_best = object_of("callback_on_new_best", callback_on_new_best)
            self.callback_on_new_best.parent = self
        self.log_path, self.best_model_save_path = log_path, best_model_save_path
        self._home = Path().absolute()  # environments may change the working directory
        self.deterministic, self.render = deterministic, render
        self.best_mean_reward, self.last_mean_reward = -np.inf, -np.inf
        self.evaluations_timesteps: list[int] = []
        self.evaluations_results: list[list[float]] = []
        self.evaluations_length: list[list[int]] = []
        self.evaluations_successes: list[list[bool]] = []

    def _init_callback(self) -> None:
        super()._init_callback()
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.init_callback(self.model)

    def _on_step(self) -> bool:
        if self.n_calls % self.eval_freq:
            return True
        result = played(self.model, self.eval_env, self.n_eval_episodes, self.deterministic, self.render)
        rewards, lengths = result.returns, result.lengths
        self.last_mean_reward = float(np.mean(rewards))
        self.logger.record("eval/mean_reward", self.last_mean_reward)
        self.logger.record("eval/mean_ep_length", float(np.mean(lengths)))
        if self.verbose:
            print(f"Eval num_timesteps={self.num_timesteps}, episode_reward={self.last_mean_reward:.2f} "
                  f"+/- {np.std(rewards):.2f}, mean length {np.mean(lengths):.1f}")  # fmt: skip
        if result.successes:
            rate = float(np.mean(result.successes))
            self.logger.record("eval/success_rate", rate)
            self.evaluations_successes.append(result.successes)
            if self.verbose:
                print(f"Success rate: {rate:.1%}")
        self.evaluations_timesteps.append(self.num_timesteps)
        self.evaluations_results.append(rewards)
        self.evaluations_length.append(lengths)
        if self.log_path:
            self._write(self._home / self.log_path)
        goes_on = True
        if self.last_mean_reward > self.best_mean_reward:
            self.best_mean_reward = self.last_mean_reward
            if self.best_model_save_path:
                best = self._home / self.best_model_save_path
                best.mkdir(parents=True, exist_ok=True)
                self.model.save(best / "best_model")
            goes_on = self.callback_on_new_best is None or self.callback_on_new_best.on_step()
        return goes_on and self._on_event()

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        more: dict[str, Any] = {"successes": np.array(self.evaluations_successes)} if self.evaluations_successes else {}
        np.savez(
            folder / "evaluations.npz", timesteps=self.evaluations_timesteps, results=self.evaluations_results,
            ep_lengths=self.evaluations_length, **more,
        )  # fmt: skip
