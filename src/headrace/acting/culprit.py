"""Who failed: env index, episode id, seed and step of what went wrong in a shard, as an error for people.

    EnvFailure, a NaN, a replay that differs --Culprit--> EnvError, NumericsError, ReplayError with the place named

Rows carry their episode and step, written before the step is taken, so the place is read off, never worked out.
Runs only when something fails, but for `is_finite`. Does not know policies or processes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.returns import shown
from headrace.envs.vector_env import EnvFailure, LiveEpisode
from headrace.errors import EnvError, EnvRaised, HeadraceError, NumericsError, ReplayError
from headrace.memory.schema import DROPPED_END
from headrace.memory.slab import Slab
from headrace.memory.spaces import Leaves, in_words

Array = npt.NDArray[Any]

_ADVICE = ". Mend the environment, clip in a wrapper, or choose nan_policy=drop or clamp"


def is_finite(slab: Slab, but: Container[str] = ()) -> bool:
    """Whether every number that the environments gave is one; some leaves may be looked at elsewhere (`but`)."""
    leaves = (leaf for name in slab.schema.leaves if name not in but for leaf in slab.shown(name))
    return all(array.dtype.kind != "f" or bool(np.isfinite(array).all()) for array in (slab.reward, *leaves))


class Culprit:
    """Names the environments of one shard."""

    def __init__(self, env_indices: range, seed_of: Callable[[int, int], int]) -> None:
        self._indices = env_indices
        self._seed_of = seed_of

    def at_start(self, failure: EnvFailure) -> EnvError:
        """A first reset failed."""
        return self._error(failure, 0, 0)

    def in_replay(self, failure: EnvFailure, live: Sequence[LiveEpisode]) -> EnvError:
        """A live episode could not be replayed."""
        one = live[failure.position]
        return self._error(failure, one.episode, len(one.actions) if failure.step is None else failure.step)

    def in_row(self, failure: EnvFailure, slab: Slab, t: int) -> HeadraceError:
        """A step of row t failed: for a NaN before it, if there was one."""
        env = failure.position
        return self.earlier(slab, t) or self._error(failure, int(slab.episode[t, env]), int(slab.step[t, env]))

    def _error(self, failure: EnvFailure, episode: int, step: int) -> EnvError:
        env = failure.position
        text = f"{self.named(env, episode, step)}: the environment {failure.reason}"
        return EnvRaised(text, (self._indices[env], episode, step)) if failure.is_raised else EnvError(text)

    def earlier(self, slab: Slab, t: int) -> NumericsError | None:
        """A NaN or an infinity before row t: what fails later fails for it."""
        return self._first_bad(slab, t)

    def not_finite(self, slab: Slab, rows: int) -> HeadraceError:
        """The first step of a slab whose reward or observation is not finite."""
        found = self._first_bad(slab, rows)
        assert found is not None, "called for a slab that is finite"
        return found

    def check_first(self, first: Leaves) -> None:
        """Refuse a first observation that is not finite."""
        for name, leaf in first.items():
            bad = _bad_rows(leaf)
            if bad.any():
                env = int(np.flatnonzero(bad)[0])
                raise NumericsError(
                    f"{self.named(env, 0, 0)}: the first {in_words(name)} is {shown(leaf[env].tolist())}{_ADVICE}"
                )

    def check_replayed(
        self, live: Sequence[LiveEpisode], replayed: Leaves, recorded: Leaves, checksums: Sequence[int]
    ) -> None:
        """Refuse a replay that does not end where the recorded episode stands, or came there in another way."""
        for position, one in enumerate(live):
            if one.is_at_start:
                continue  # no observation was recorded yet
            if any(replayed[name][position].tobytes() != recorded[name][position].tobytes() for name in replayed):
                raise ReplayError(
                    f"env {one.env_index}, episode {one.name}, seed {one.seed}: after {len(one.actions)} replayed "
                    f"steps the observation is not the one that was recorded; the environment is not deterministic "
                    f"(headrace check tells) or its code or version changed"
                )
            if one.checksum != checksums[position]:
                raise ReplayError(
                    f"env {one.env_index}, episode {one.name}, seed {one.seed}: its {len(one.actions)} replayed "
                    f"steps end at the recorded observation, but gave other rewards, flags or observations on the way "
                    f"(expected checksum {one.checksum:016x}, got {checksums[position]:016x}). The environment is "
                    f"class C: it keeps something beyond a reset, as gymnasium.wrappers.NormalizeReward does, or its "
                    f"code or version changed. headrace check shows the class. Leave such a wrapper out, or train on "
                    f"from the weights alone (PPO.load(RUN, weights_only=True) in Python)"
                )

    def _first_bad(self, slab: Slab, rows: int) -> NumericsError | None:
        """Rows beyond `rows` were not written, but for final observations."""
        bad_finals = np.any([_bad_rows(leaf) for leaf in slab.final_obs.values()], axis=0)
        finals = dict(divmod(int(row), slab.schema.n_envs) for row in slab.final_row[bad_finals][::-1])
        for t in range(rows):
            bad = _bad_rows(slab.reward[t])
            if bad.any():
                env = int(np.flatnonzero(bad)[0])
                got = slab.reward[t, env]
                return NumericsError(
                    f"{self.place(env, slab, t)}: the reward is {got}; expected a finite number{_ADVICE}"
                )
            if t in finals:
                break
            for name, leaf in slab.rows[t].next_obs.items():
                bad = _bad_rows(leaf)
                if bad.any():
                    env = int(np.flatnonzero(bad)[0])
                    where, got = self.followed(env, slab, t, name), shown(leaf[env].tolist())
                    return NumericsError(f"{where} has NaN or infinity: {got}{_ADVICE}")
        if not finals:
            return None
        t = min(finals)
        return NumericsError(f"{self.place(finals[t], slab, t)}: the final observation has NaN or infinity{_ADVICE}")

    def place(self, env: int, slab: Slab, t: int) -> str:
        """The step of row t."""
        return self.named(env, int(slab.episode[t, env]), int(slab.step[t, env]))

    def followed(self, env: int, slab: Slab, t: int, name: str) -> str:
        """The observation that followed row t: the next episode's first, if one ended there."""
        if slab.terminated[t, env] or slab.truncated[t, env] or slab.step[t, env] == DROPPED_END:
            return f"{self.named(env, int(slab.episode[t, env]) + 1, 0)}: the first {in_words(name)}"
        return f"{self.place(env, slab, t)}: the {in_words(name)} that followed"

    def named(self, env: int, episode: int, step: int) -> str:
        """An environment's episode and step, in words."""
        index = self._indices[env]
        return f"env {index}, episode {index}:{episode}, seed {self._seed_of(index, episode)}, step {step}"


def _bad_rows(values: Array) -> Array:
    """Which entries along the first axis hold something that is not a finite number."""
    if values.dtype.kind != "f":
        return np.zeros(len(values), bool)
    return np.asarray(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
