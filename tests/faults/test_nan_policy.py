"""nan_policy: raise names the first bad step, drop takes whole episodes out, clamp mends numbers; weights stay finite.

Held against a slow account of what happened, row by row; the same bits on every topology, after a resume and a kill.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.acting.inspection import Inspection
from headrace.collecting.processes import Processes
from headrace.envs.mended import MOST_IN_A_ROW, mended
from headrace.envs.serial import SerialEnvs
from headrace.envs.vector_env import VectorEnv
from headrace.episodes.journal import Journal, in_order
from headrace.episodes.standing import standing
from headrace.errors import EnvError, HeadraceError, NumericsError, UsageError
from headrace.memory.layout import Word
from headrace.memory.ledger import Ledger
from headrace.memory.schema import DROPPED, DROPPED_END
from headrace.memory.slab import Slab
from support.chains import seed_of
from support.generators import quick
from support.slabs import act_by_noise, action_of, noise_actor, slab_for
from support.spotty_envs import AlwaysBad, Healthy, Life, Lived, Spotty, clamped, spotty_pool
from support.topology_runs import INLINE, Case, processes, threads

ENVS = range(40, 43)
CASE = Case("spotty", Spotty, n_steps=16, updates=5, n_envs=6)


def envs_under(policy: str, env_indices: range = ENVS, kind: type[Spotty] = Spotty) -> VectorEnv:
    return mended(SerialEnvs(kind, env_indices, seed_of), policy)


def filled(envs: VectorEnv, n_steps: int, count: int) -> list[Slab]:
    actor = noise_actor(envs, ENVS)
    slabs = [slab_for(envs, n_steps) for _ in range(count)]
    for version, slab in enumerate(slabs):
        actor.fill(slab, act_by_noise(version))
    return slabs


def is_finite(slab: Slab) -> bool:
    arrays = (slab.reward, slab.obs["obs"], slab.last_obs["obs"], slab.final_obs["obs"])
    return all(np.isfinite(array).all() for array in arrays)


# ----------------------------------------------------------------------------------------------------------------- drop


def kept(rows: list[Lived], n_steps: int) -> list[bool]:
    """A row stays valid if no row of its episode in the same slab is bad."""
    bad = {(row.episode, t // n_steps) for t, row in enumerate(rows) if row.is_bad}
    return [(row.episode, t // n_steps) not in bad for t, row in enumerate(rows)]


@quick
@given(n_steps=st.integers(1, 13), first_env=st.integers(0, 5_000))
def test_drop_takes_out_the_episode_of_a_bad_step_and_nothing_else(n_steps: int, first_env: int) -> None:
    env_indices = range(first_env, first_env + 3)
    envs = envs_under("drop", env_indices)
    actor, count = noise_actor(envs, env_indices), 4
    slabs = [slab_for(envs, n_steps) for _ in range(count)]
    for version, slab in enumerate(slabs):
        actor.fill(slab, act_by_noise(version))
    assert all(map(is_finite, slabs))
    for b, env_index in enumerate(env_indices):
        rows, last = Life(env_index).rows(n_steps * count)
        valid = kept(rows, n_steps)
        for t, (row, is_kept) in enumerate(zip(rows, valid, strict=True)):
            slab, at = slabs[t // n_steps], (t % n_steps, b)
            assert slab.valid[at] == is_kept
            assert slab.episode[at] == row.episode
            assert slab.obs["obs"][at].tolist() == pytest.approx(row.obs)
            assert slab.action[at] == action_of(env_index, t)
            finals = dict(zip(slab.final_row.tolist(), slab.final_obs["obs"].tolist(), strict=True))
            if is_kept:
                assert (slab.step[at], slab.reward[at]) == (row.step, row.reward)
                assert (bool(slab.terminated[at]), bool(slab.truncated[at])) == (
                    row.ended == "terminated", row.ended == "truncated",
                )  # fmt: skip
                assert finals.get(at[0] * 3 + b) == row.final
            else:
                assert slab.step[at] == (DROPPED_END if row.is_bad else DROPPED)
                assert slab.reward[at] == 0
                assert not slab.terminated[at]
                assert not slab.truncated[at]
                assert at[0] * 3 + b not in finals
        assert slabs[-1].last_obs["obs"][b].tolist() == pytest.approx(last)
    for slab in slabs:
        assert slab.header[Word.DROPPED_STEPS] == (~slab.valid).sum()
        assert slab.header[Word.DROPPED_EPISODES] == (slab.step == DROPPED_END).sum()


@quick
@given(n_steps=st.integers(1, 13), first_env=st.integers(0, 5_000), entered=st.integers(1, 3))
def test_a_journal_brings_environments_back_behind_a_dropped_episode(
    n_steps: int, first_env: int, entered: int
) -> None:
    """What was dropped is over: the journal goes on with the next episode, and the same slabs come out."""
    env_indices = range(first_env, first_env + 3)
    envs = envs_under("drop", env_indices)
    actor = noise_actor(envs, env_indices)
    slabs = [slab_for(envs, n_steps) for _ in range(entered + 2)]
    for version, slab in enumerate(slabs):
        actor.fill(slab, act_by_noise(version))
    journal = Journal(env_indices.stop, seed_of, envs.observation_space, envs.action_space)
    for slab in slabs[:entered]:
        journal.enter(env_indices, slab)
    again = envs_under("drop", env_indices)
    brought_back = noise_actor(again, env_indices, standing=standing(journal, env_indices))
    for version, slab in enumerate(slabs[entered:], entered):
        other = slab_for(again, n_steps)
        brought_back.fill(other, act_by_noise(version))
        for name in ("obs", "last_obs", "action", "reward", "valid", "terminated", "truncated", "episode", "step"):
            ours, theirs = getattr(slab, name), getattr(other, name)
            ours, theirs = (ours["obs"], theirs["obs"]) if isinstance(ours, dict) else (ours, theirs)
            assert ours.tobytes() == theirs.tobytes(), name


def test_a_dropped_episode_is_no_result() -> None:
    envs = envs_under("drop")
    journal = Journal(ENVS.stop, seed_of, envs.observation_space, envs.action_space)
    finished = [one for slab in filled(envs, 7, 12) for one in in_order([journal.enter(ENVS, slab)])]
    for env_index in ENVS:
        rows, _ = Life(env_index).rows(7 * 12)
        bad = {row.episode for row in rows if row.is_bad}
        wanted = {row.episode for row in rows if row.ended and row.episode not in bad}
        mine = [one for one in finished if one.env_index == env_index]
        assert {one.episode for one in mine} == wanted
        for one in mine:
            own = [row for row in rows if row.episode == one.episode]
            assert (one.length, one.total_reward) == (len(own), sum(row.reward for row in own))
        assert bad
        assert wanted


def test_an_environment_that_is_never_sound_ends_the_run() -> None:
    """And does not hang: no step would ever be counted."""
    for n_steps in (1, 4, 64):
        with pytest.raises(HeadraceError) as caught, hr.PPO(
            "MlpPolicy", AlwaysBad, n_envs=2, n_steps=n_steps, topology="inline", nan_policy="drop", seed=1
        ) as model:  # fmt: skip
            model.learn(10_000)
        assert "in a row" in str(caught.value) or "dropped" in str(caught.value)
    with pytest.raises(EnvError, match=rf"^env 4\d, episode .* {MOST_IN_A_ROW} episodes in a row; nan_policy=drop"):
        filled(envs_under("drop", kind=AlwaysBad), 400, 1)


def test_drop_is_refused_for_pools_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="nan_policy=drop needs single environments"):
        hr.PPO("MlpPolicy", spotty_pool, n_envs=2, n_steps=8, nan_policy="drop")


# ---------------------------------------------------------------------------------------------------------------- clamp


@quick
@given(first_env=st.integers(0, 5_000))
def test_clamp_changes_the_numbers_that_are_not_finite_and_no_others(first_env: int) -> None:
    env_indices = range(first_env, first_env + 3)
    envs = envs_under("clamp", env_indices)
    slab = slab_for(envs, 24)
    noise_actor(envs, env_indices).fill(slab, act_by_noise(0))
    assert slab.valid.all()
    count = 0
    for b, env_index in enumerate(env_indices):
        env, episode = Spotty(), 0
        obs, _ = env.reset(seed=seed_of(env_index, 0))
        for t in range(24):
            assert slab.obs["obs"][t, b].tolist() == pytest.approx(clamped(obs))
            obs, reward, terminated, truncated, _ = env.step(action_of(env_index, t))
            limited = {np.inf: 1e6, -np.inf: -1e6}.get(reward, 0.0 if np.isnan(reward) else reward)
            assert slab.reward[t, b] == limited
            is_cut = truncated and not terminated
            if is_cut:
                at = slab.final_row.tolist().index(t * 3 + b)
                assert slab.final_obs["obs"][at].tolist() == pytest.approx(clamped(obs))
            is_bad = not np.isfinite(reward) or (not terminated and not np.isfinite(obs).all())
            if terminated or truncated:
                episode += 1
                obs, _ = env.reset(seed=seed_of(env_index, episode))
                is_bad |= not np.isfinite(obs).all()
            count += is_bad
    first = [Spotty().reset(seed=seed_of(env, 0))[0] for env in env_indices]
    assert slab.header[Word.CLAMPED] == count + sum(not np.isfinite(obs).all() for obs in first)


def test_clamp_works_for_pools() -> None:
    with hr.PPO("MlpPolicy", spotty_pool, n_envs=4, n_steps=32, topology="inline", nan_policy="clamp", seed=3) as model:
        model.learn(256)
        assert all(np.isfinite(p.detach().numpy()).all() for p in model.parts.module.parameters())


# ---------------------------------------------------------------------------------------------------------------- raise


def test_raise_names_the_first_bad_step() -> None:
    rows, _ = Life(ENVS[0]).rows(200)
    at = next(t for t, row in enumerate(rows) if row.is_bad)
    envs = envs_under("raise", range(ENVS[0], ENVS[0] + 1))
    actor = noise_actor(envs, range(ENVS[0], ENVS[0] + 1))
    with pytest.raises(NumericsError) as caught:
        actor.fill(slab_for(envs, 200), act_by_noise(0))
    where = f"env 40, episode 40:{rows[at].episode}, seed {seed_of(40, rows[at].episode)}, step {rows[at].step}: "
    assert str(caught.value).startswith(where)


def test_a_bad_first_observation_of_a_later_episode_is_named_as_that() -> None:
    class First(Spotty):
        def __init__(self) -> None:
            super().__init__(kinds=("nothing", "first"))

    env_index = next(
        env for env in range(99)
        if (kinds := [kind_of(First(), seed_of(env, episode)) for episode in range(3)])[0] == "nothing"
        and "first" in kinds
    )  # fmt: skip
    episode = [kind_of(First(), seed_of(env_index, n)) for n in range(3)].index("first")
    envs = SerialEnvs(First, range(env_index, env_index + 1), seed_of)
    actor = noise_actor(envs, range(env_index, env_index + 1))
    with pytest.raises(NumericsError) as caught:
        actor.fill(slab_for(envs, 200), act_by_noise(0))
    assert f"episode {env_index}:{episode}" in str(caught.value)
    assert "step 0: the first observation has NaN" in str(caught.value)


def kind_of(env: Spotty, seed: int) -> str:
    env.reset(seed=seed)
    return env._kind


@pytest.mark.parametrize("policy", ["drop", "clamp"])
def test_a_sound_environment_is_not_touched(policy: str) -> None:
    """No policy changes a bit of a calm run, and none reports anything."""
    straight = filled(SerialEnvs(Healthy, ENVS, seed_of), 16, 2)
    for ours, theirs in zip(straight, filled(envs_under(policy, kind=Healthy), 16, 2), strict=True):
        for name in ("obs", "action", "reward", "valid", "terminated", "truncated", "episode", "step", "last_obs"):
            assert ours.arrays[name].tobytes() == theirs.arrays[name].tobytes()
        assert not theirs.header[Word.CLAMPED : Word.CPU_NS].any()


def test_the_words_of_the_options_are_checked() -> None:
    for options in ({"nan_policy": "ignore"}, {"nan_policy": True}, {"out_of_bounds": "drop"}):
        with pytest.raises(UsageError, match=next(iter(options))):
            hr.PPO("MlpPolicy", Spotty, **options)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------- the same bits


def bits(policy: str, place: dict[str, Any], stop: int | None = None, kill: bool = False) -> tuple[Any, ...]:
    """Weights, ledger, episodes and steps of a run; stopped and resumed, or with a worker killed, on the way."""
    finished = []
    with CASE.build(**place, nan_policy=policy) as (run, parts):
        for update in range(stop or CASE.updates):
            if kill and update in (1, 3):
                assert isinstance(parts.reader.place, Processes)
                os.kill(parts.reader.place.workers.pids[update % 2], signal.SIGKILL)
            finished += list(run.update(CASE.total_timesteps).harvest.finished)
        result = run.hashes(), {**run.totals().ledger}, run.steps
        assert not kill or run.totals().restarts == 2
        snapshot = run.snapshot()
    if stop is not None:
        with CASE.build(**place, nan_policy=policy) as (run, _):
            run.restore(snapshot)
            for _ in range(stop, CASE.updates):
                finished += list(run.update(CASE.total_timesteps).harvest.finished)
            result = run.hashes(), {**run.totals().ledger}, run.steps
    key = [(one.env_index, one.episode, one.total_reward, one.length) for one in finished]
    return *result, sorted(key)


@pytest.mark.parametrize("policy", ["drop", "clamp"])
def test_the_same_bits_everywhere(policy: str) -> None:
    expected = bits(policy, INLINE)
    ledger = expected[1]
    assert ledger["produced"] == CASE.updates * CASE.n_envs * CASE.n_steps
    assert (sum(ledger["discarded"].values()) > 20) == (policy == "drop")
    assert expected[2] == ledger["consumed"], "what was dropped is not counted as a step"
    assert bits(policy, {**INLINE, "shards": 3}) == expected
    assert bits(policy, threads(2)) == expected
    assert bits(policy, INLINE, stop=2) == expected, "stopped and resumed"
    assert bits(policy, processes(2), kill=True) == expected, "two workers killed"


def test_the_ledger_says_why_and_balances() -> None:
    with CASE.build(**INLINE, nan_policy="drop") as (run, _):
        run.update(CASE.total_timesteps)
        ledger = run.totals().ledger
    assert list(ledger["discarded"]) == ["not finite (nan_policy=drop)"]
    assert ledger["produced"] == ledger["consumed"] + ledger["rejected"] + sum(ledger["discarded"].values())
    balanced = Ledger()
    balanced.restore(ledger)
    balanced.check()


# ----------------------------------------------------------------------------------------------- reports and evaluation


@pytest.mark.parametrize(
    ("policy", "word", "tag"), [("drop", "dropped", "dropped_episodes"), ("clamp", "clamped", "clamped")]
)
def test_it_is_reported_once_and_counted_in_every_update(
    policy: str, word: str, tag: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), hr.PPO(
        "MlpPolicy", Spotty, n_envs=6, n_steps=16, batch_size=32, seed=5, topology="threads", workers=2,
        nan_policy=policy,
    ) as model:  # fmt: skip
        model.learn(480, run_dir=tmp_path / "run")
    said = [record.message for record in caplog.records if word in record.message]
    assert len(said) == 1
    assert said[0].startswith("env ")
    assert "seed" in said[0]
    assert "step" in said[0]
    assert "-1" not in said[0], "the step as it was, not as the row is marked"
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    counts = [record.get(f"headrace/{tag}", 0) for record in metrics]
    assert sum(count > 0 for count in counts) >= 3
    assert said[0] in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("policy", ["drop", "clamp"])
def test_evaluations_follow_the_policy(policy: str) -> None:
    with hr.PPO("MlpPolicy", Spotty, n_envs=2, n_steps=16, seed=5, topology="inline", nan_policy=policy) as model:
        returns, lengths = hr.evaluate_policy(model, n_eval_episodes=40, return_episode_rewards=True)
    assert len(returns) == 40  # type: ignore[arg-type]
    assert np.isfinite(returns).all()
    assert max(lengths) <= 9, "a dropped episode's steps are not the next one's"  # type: ignore[type-var]


def test_an_inspection_without_a_policy_still_raises() -> None:
    envs = SerialEnvs(AlwaysBad, ENVS, seed_of)
    actor = noise_actor(envs, ENVS)
    assert isinstance(actor._inspect, Inspection)
    with pytest.raises(NumericsError):
        actor.fill(slab_for(envs, 32), act_by_noise(0))
