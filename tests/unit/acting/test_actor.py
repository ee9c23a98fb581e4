"""The actor's guards: what is not finite is named with its environment, episode, seed and step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.errors import HeadraceError, NumericsError
from support.chains import SOURCES, ChainEnv, Script, seed_of
from support.pairwise import Cell, matrix
from support.slabs import act_by_noise, noise_actor, slab_for

ENV_INDICES = range(3, 6)
BAD = ENV_INDICES[1]
SCRIPT = Script(seed=9, longest=5)

every_source = pytest.mark.parametrize("source", SOURCES)


class NotFinite(ChainEnv):
    """Plays the script, but one number of one transition of one environment is `what`."""

    def __init__(self, env_index: int, where: str, when: tuple[int, int], what: float) -> None:
        super().__init__(env_index, SCRIPT)
        self._where, self._when = (where if env_index == BAD else "nowhere"), when
        self._what = what

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        if self._where == "reset" and len(self.reset_seeds) - 1 == self._when[0]:
            obs[1] = self._what
        return obs, info

    def step(self, action: Any) -> Any:
        episode, before = len(self.reset_seeds) - 1, self._step
        obs, reward, terminated, truncated, info = super().step(action)
        if (episode, before) == self._when:
            if self._where == "obs":
                obs[2] = self._what
            elif self._where == "reward":
                reward = self._what
        return obs, reward, terminated, truncated, info


def fill(source: str, where: str, when: tuple[int, int], what: float, n_steps: int = 12, n_slabs: int = 3) -> None:
    makers = [lambda env=env: NotFinite(env, where, when, what) for env in ENV_INDICES]
    envs = SOURCES[source](makers, ENV_INDICES, seed_of)  # type: ignore[arg-type]
    actor, slab = noise_actor(envs, ENV_INDICES), slab_for(envs, n_steps)
    for _ in range(n_slabs):
        slab.poison()
        actor.fill(slab, act_by_noise(0))


def episode_that(condition: Callable[[int], bool]) -> int:
    return next(episode for episode in range(1, 100) if condition(episode))


LONG = episode_that(lambda episode: SCRIPT(BAD, episode).length >= 4)
CUT = episode_that(lambda episode: SCRIPT(BAD, episode).truncated and not SCRIPT(BAD, episode).terminated)


def place(episode: int, step: int) -> str:
    return f"env {BAD}, episode {BAD}:{episode}, seed {seed_of(BAD, episode)}, step {step}: "


@pytest.mark.parametrize(
    "cell",
    matrix({"source": list(SOURCES), "where": ["reward", "obs"], "what": [np.nan, np.inf], "n_steps": [1, 4, 12]}),
)
def test_a_number_in_the_middle_is_named(cell: Cell) -> None:
    with pytest.raises(NumericsError) as caught:
        fill(cell["source"], cell["where"], (LONG, 1), cell["what"], cell["n_steps"], n_slabs=60)
    assert str(caught.value).startswith(place(LONG, 1))


@every_source
def test_the_reward_of_an_episodes_last_step_is_named(source: str) -> None:
    last = SCRIPT(BAD, LONG).length - 1
    with pytest.raises(NumericsError) as caught:
        fill(source, "reward", (LONG, last), np.nan, n_slabs=60)
    assert str(caught.value).startswith(place(LONG, last))


@every_source
def test_the_first_observation_of_all_is_looked_at(source: str) -> None:
    with pytest.raises(HeadraceError, match=rf"env {BAD}, episode {BAD}:0"):
        fill(source, "reset", (0, 0), np.nan)


@every_source
def test_the_first_observation_of_a_later_episode_is_looked_at(source: str) -> None:
    with pytest.raises(NumericsError, match=f"env {BAD}, "):
        fill(source, "reset", (LONG, 0), np.nan, n_slabs=60)


@every_source
def test_the_final_observation_of_a_cut_episode_is_looked_at(source: str) -> None:
    """Nobody acts on it, but its value is what the advantages of a truncated episode hang on."""
    last = SCRIPT(BAD, CUT).length - 1
    with pytest.raises(NumericsError) as caught:
        fill(source, "obs", (CUT, last), np.nan, n_slabs=60)
    assert str(caught.value).startswith(place(CUT, last))


@every_source
def test_a_finite_script_passes(source: str) -> None:
    fill(source, "nowhere", (0, 0), 0.0, n_slabs=10)
