"""Callbacks of `learn`: plain functions, Stable-Baselines3's kind of objects, and lists of both.

    update -> record -> function(record)                                              False ends training
                     -> object: on_step once per row of the rollout, on_rollout_end, on_rollout_start

Environments step in workers, so an object's `on_step` is called after the rollout and its update, once for each of its
rows, with `num_timesteps` counting along: frequencies mean what they mean in Stable-Baselines3. `locals` has what is
known of a row: `dones`, and `infos` with the episodes that ended; and the record of the update. Those that are ready to
use are in stock_callbacks. Does not know how training goes on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from headrace.clock import now_s
from headrace.episodes.finished import Finished
from headrace.errors import UsageError
from headrace.keywords import in_words
from headrace.telemetry.sinks import Record

if TYPE_CHECKING:
    from headrace.api.model import Model

Function = Callable[[Record], bool | None]
_METHODS = ("on_step", "on_training_start", "on_training_end", "on_rollout_start", "on_rollout_end")


@in_words()
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
        """Called after the rows of a rollout; its update is done by then."""
        self._on_rollout_end()

    def on_training_end(self) -> None:
        """Called once, when training has ended."""
        self._on_training_end()

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """What there is to see of a row and its update."""
        self.locals.update(locals_)
        self.update_child_locals(locals_)

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        """The same for the callbacks in this one."""

    def _init_callback(self) -> None: ...

    def _on_training_start(self) -> None: ...

    def _on_rollout_start(self) -> None: ...

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None: ...

    def _on_training_end(self) -> None: ...


@in_words()
class CallbackList(BaseCallback):
    """Several callbacks as one."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        super().__init__()
        self.callbacks = [object_of("CallbackList", one) for one in _flat(callbacks)]

    def _init_callback(self) -> None:
        for one in self.callbacks:
            one.init_callback(self.model)
            one.parent = self.parent  # of EvalCallback(callback_after_eval=CallbackList(...))

    def _on_training_start(self) -> None:
        for one in self.callbacks:
            one.on_training_start(self.locals, self.globals)

    def _on_rollout_start(self) -> None:
        for one in self.callbacks:
            one.on_rollout_start()

    def _on_step(self) -> bool:
        return False not in [one.on_step() for one in self.callbacks]  # all are called, whatever the first one says

    def _on_rollout_end(self) -> None:
        for one in self.callbacks:
            one.on_rollout_end()

    def _on_training_end(self) -> None:
        for one in self.callbacks:
            one.on_training_end()

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        """What there is to see, for each."""
        for one in self.callbacks:
            one.update_locals(locals_)


class ConvertCallback(BaseCallback):
    """Stable-Baselines3's function of `locals, globals`, called for each row; False ends training."""

    def __init__(self, callback: Callable[[dict[str, Any], dict[str, Any]], bool | None], verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback

    def _on_step(self) -> bool:
        return self.callback(self.locals, self.globals) is not False


def object_of(what: str, callback: Any) -> Any:
    """What another callback calls: an object, a function of `locals, globals`, or a list of them as one object."""
    every = list(_flat(callback))
    for one in every:
        if not hasattr(one, "on_step"):
            raise UsageError(
                f"{what}: expected an object with on_step or a function of locals, globals, got {one!r}; a function of "
                f"the update's record goes to learn(callback=...)"
            )
    return every[0] if len(every) == 1 else CallbackList(every)


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what}: expected a number, got {type(value).__name__}; metrics hold numbers") from error


class Logger:
    """What callbacks have recorded since the last update."""

    def __init__(self) -> None:
        self.name_to_value: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        """An entry of the next record; `exclude` is for Stable-Baselines3's signature."""
        self.name_to_value[key] = _number(f"logger.record({key!r}, ...)", value)
        self._counts.pop(key, None)

    def record_mean(self, key: str, value: float | None, exclude: Any = None) -> None:
        """The mean of what is recorded so under this name until the next update."""
        if value is not None:
            count, before = self._counts.get(key, 0), self.name_to_value.get(key, 0.0)
            self.record(key, value if not count else before + (value - before) / (count + 1))
            self._counts[key] = count + 1

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"logger has no attribute {name!r}: it has record, record_mean and name_to_value; files are written where "
            f"tensorboard_log or learn(run_dir=...) says"
        )

    def dump(self, step: int = 0) -> None:
        """Entries are written with every update."""

    def taken(self) -> dict[str, float]:
        """All entries; they are gone here."""
        values, self.name_to_value = self.name_to_value, {}
        self._counts.clear()
        return values


class Seen(dict[str, Any]):
    """`locals` of a callback; what is not known here is said so."""

    def __missing__(self, name: str) -> Any:
        raise UsageError(
            f"callback: locals[{name!r}] is not there: environments step in workers, and callbacks see whole rollouts. "
            f"There are {', '.join(sorted(self))}; hr.Collector has observations, actions and rewards"
        )


class Calls:
    """All callbacks of one call of learn, as the session sees them: one function of an update."""

    def __init__(self, callback: Any, model: Model, total_timesteps: int) -> None:
        every = list(_flat(callback))
        self._functions: list[Function] = [one for one in every if not hasattr(one, "on_step")]
        self._objects = [one for one in every if hasattr(one, "on_step")]
        place, journal = model.parts.config.topology, model.parts.reader.journal
        self._model, self._rows, self._n_envs, self._total = model, place.n_steps, place.n_envs, total_timesteps
        self._passed = [-journal.length(env) for env in range(place.n_envs)]  # steps of episodes that ended since then
        self._updates, self._started_s = 0, now_s()
        for one in self._objects:
            for name in _METHODS:
                if not callable(getattr(one, name, None)):
                    raise UsageError(f"callback: expected an object with {', '.join(_METHODS)}; {one!r} lacks {name}")

    def __bool__(self) -> bool:
        return bool(self._functions or self._objects)

    def start(self) -> None:
        """Training starts."""
        for one in self._objects:
            if hasattr(one, "init_callback"):
                one.init_callback(self._model)
            one.on_training_start(Seen(self=self._model, total_timesteps=self._total), {})
            one.on_rollout_start()

    def __call__(self, record: Record, finished: Sequence[Finished] = ()) -> bool:
        """After an update; False ends training. What objects have recorded is in the record afterwards."""
        answers = [function(record) for function in self._functions]  # all are called, whatever the first one says
        goes_on = False not in answers
        for key, value in record.items() if answers else ():
            if value is not None:
                _number(f"record[{key!r}]", value)
        if self._objects:
            goes_on = self._step_through(record, finished) and goes_on
        record.update(self._model.logger.taken())
        if goes_on and self._model.run.steps < self._total:
            for one in self._objects:
                one.on_rollout_start()
        return goes_on

    def _step_through(self, record: Record, finished: Sequence[Finished]) -> bool:
        model, steps = self._model, self._model.run.steps
        ended = self._by_row(finished)
        try:
            for row in range(self._rows):
                model.shown_steps = max(0, steps - (self._rows - row - 1) * self._n_envs)
                dones, infos = np.zeros(self._n_envs, bool), [dict[str, Any]() for _ in range(self._n_envs)]
                for one in ended.get(row, ()):
                    dones[one.env_index] = True
                    episode = {"r": one.total_reward, "l": one.length, "t": round(now_s() - self._started_s, 6)}
                    infos[one.env_index] = {"episode": episode, "TimeLimit.truncated": not one.terminated}
                seen = {"record": record, "n_steps": row, "dones": dones, "infos": infos}
                for callback in self._objects:
                    if hasattr(callback, "update_locals"):
                        callback.update_locals(seen)
                if False in [callback.on_step() for callback in self._objects]:
                    return False
        finally:
            model.shown_steps = None
        for callback in self._objects:
            callback.on_rollout_end()
        return True

    def _by_row(self, finished: Sequence[Finished]) -> dict[int, list[Finished]]:
        """Episodes by the row that they ended in: an environment's steps are its episodes' lengths, one after another.

        Rows without a step, and rollouts that come out of order, put an end where it fits best.
        """
        rows: dict[int, list[Finished]] = {}
        for one in finished:
            self._passed[one.env_index] += one.length
            row = self._passed[one.env_index] - 1 - self._updates * self._rows
            rows.setdefault(min(max(row, 0), self._rows - 1), []).append(one)
        self._updates += 1
        return rows

    def end(self) -> None:
        """Training has ended."""
        for one in self._objects:
            one.on_training_end()


def _flat(callback: Any) -> Iterable[Any]:
    if callback is None:
        return
    if isinstance(callback, Sequence) and not isinstance(callback, str):
        for one in callback:
            yield from _flat(one)
    elif hasattr(callback, "on_step") and not isinstance(callback, type):
        yield callback
    elif callable(callback) and not isinstance(callback, type):
        yield ConvertCallback(callback) if _takes_two(callback) else callback
    else:
        raise UsageError(
            f"callback: expected a function of the update's record, an object with on_step, or a list of them, "
            f"got {callback!r}"
        )


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether it is a function of `locals, globals`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C have none
        return False
    by_place = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len([one for one in by_place if one.default is one.empty]) == 2
