"""The doctor's arithmetic: for every verdict a case in which it is right, and one in which saying it would be a lie."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import verdict as causes
from headrace.planning.advice import Advice, _spread, advise
from headrace.planning.cycle import AHEAD, IN_STEP, Cycle, cycle_of, worker_of
from headrace.planning.evidence import PHASES, Evidence, WorkerTimes
from headrace.planning.verdict import judge


def run(workers: tuple[WorkerTimes, ...] = (), max_lag: int = 0, **seconds: float) -> Evidence:
    """8 environments, 64 rows; what an update takes, by phase, all of it CPU time on 4 free cores."""
    learner = dict.fromkeys(PHASES, 0.0) | seconds
    busy = [one.busy for one in workers]
    beside = sum(learner[name] for name in ("episodes", "log", "view", "callback", "checkpoint", "evaluation"))
    actors_cpu_s = sum(one.cpu for one in workers) or learner["env"] + learner["inference"] + learner["copy"]
    return Evidence(
        learner, steps=512, workers=workers, busiest_s=max(busy, default=0.0),
        collected_s=learner["wait"] + beside if learner["wait"] else max(busy, default=0.0),
        actors_cpu_s=actors_cpu_s, learner_cpu_s=sum(learner.values()) - learner["wait"], updates=20, seconds=10.0,
        free_cores=4.0, cores=4, place="processes" if workers else "inline", shards=max(1, len(workers)),
        max_lag=max_lag, gradient_steps=10,
        options={"n_envs": 8, "n_epochs": 10, "log_interval": 1, "checkpoint_every": 1000},
    )  # fmt: skip


def busy(env: float = 0.0, inference: float = 0.0, copy: float = 0.0, idle: float = 0.0) -> WorkerTimes:
    return WorkerTimes(env, inference, copy, idle, env + inference + copy)


def gain(evidence: Evidence, option: str, **more: Any) -> float:
    """Of the advice with this option; 1 if there is none."""
    return next((one.gain for one in advise(evidence, **more) if option in one.options), 1.0)


class TestVerdict:
    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            ({"env": 0.8, "sgd": 0.1}, causes.ENV),
            ({"inference": 0.8, "sgd": 0.1}, causes.INFERENCE),
            ({"sgd": 0.7, "completion": 0.1, "env": 0.1}, causes.LEARNER),
            ({"hand_over": 0.5, "copy": 0.3, "env": 0.1}, causes.COMMUNICATION),
            ({"log": 0.4, "episodes": 0.3, "env": 0.1}, causes.LOGGING),
            ({"checkpoint": 0.7, "env": 0.1}, causes.CHECKPOINTS),
            ({"evaluation": 0.7, "env": 0.1}, causes.EVALUATIONS),
            ({"callback": 0.7, "env": 0.1}, causes.CALLBACK),
        ],
    )
    def test_inline_the_longest_phase_is_the_cause(self, seconds: dict[str, float], expected: str) -> None:
        verdict = judge(run(**seconds))
        assert verdict.names == (expected,)
        assert verdict.causes[0].share == pytest.approx(1 - min(seconds.values()) / sum(seconds.values()))

    def test_two_causes_at_once_are_both_named_the_larger_one_first(self) -> None:
        verdict = judge(run(env=0.3, sgd=0.6, log=0.1))
        assert verdict.names == (causes.LEARNER, causes.ENV)
        assert verdict.sentence.startswith("Learner-bound (60% of an update's time) and env-bound (30%)")

    def test_no_single_cause(self) -> None:
        verdict = judge(run(env=0.2, sgd=0.2, log=0.2, checkpoint=0.2, inference=0.2))
        assert verdict.names == (causes.BALANCED,)
        assert "No single cause" in verdict.sentence

    def test_too_short_a_run_says_so(self) -> None:
        verdict = judge(replace(run(env=1.0), updates=3))
        assert verdict.names == (causes.TOO_SHORT,)
        assert not advise(replace(run(env=1.0), updates=3))

    def test_findings_of_others_are_carried_along(self) -> None:
        assert "Two environments started alike." in judge(run(env=1.0), ["Two environments started alike."]).notes

    def test_workers_in_step_are_named_by_what_they_do(self) -> None:
        slow = run((busy(env=0.9), busy(env=0.9)), wait=0.9, sgd=0.1)
        assert judge(slow).names == (causes.ENV,)
        assert judge(slow).is_starved

    def test_logging_that_is_hidden_behind_collecting_is_no_cause(self) -> None:
        hidden = run((busy(env=0.9), busy(env=0.9)), wait=0.4, log=0.5, sgd=0.1)
        assert judge(hidden).names == (causes.ENV,)
        assert any("cost nothing" in note for note in judge(hidden).notes)
        assert gain(hidden, "--log-interval") == 1.0

    def test_a_learner_that_logs_so_long_that_workers_idle_is_logging_bound(self) -> None:
        shown = run((busy(env=0.1, idle=0.9), busy(env=0.1, idle=0.9)), wait=0.0, log=0.9, sgd=0.1)
        assert judge(shown).names == (causes.LOGGING,)
        assert cycle_of(shown).beside["log"] == pytest.approx(0.8)  # the rest is behind collecting

    def test_one_slow_worker_is_an_imbalance_and_not_env_bound(self) -> None:
        verdict = judge(run((busy(env=0.1), busy(env=0.9)), wait=0.9, sgd=0.05))
        assert verdict.names == (causes.IMBALANCE,)
        assert "worker 1 is busy for 900 ms" in verdict.causes[0].evidence

    def test_a_worker_that_is_slow_for_one_env_is_named_by_that_env(self) -> None:
        one = run((busy(env=0.1), busy(env=0.74)), wait=0.74, sgd=0.02)
        verdict = judge(replace(one, slow_envs=(6,), slow_env_s=0.0101, usual_env_s=0.0001))
        assert verdict.names == (causes.SLOW_ENV,)  # 64 rows of 10 ms beyond the others
        assert "env 6" in verdict.sentence
        assert verdict.shares[causes.IMBALANCE] == pytest.approx(0.0)

    def test_a_slow_env_of_the_other_worker_does_not_explain_an_imbalance(self) -> None:
        one = run((busy(env=0.1), busy(env=0.74)), wait=0.74, sgd=0.02)
        assert judge(replace(one, slow_envs=(0,), slow_env_s=0.0101, usual_env_s=0.0001)).names[0] == causes.IMBALANCE

    def test_a_slow_env_whose_worker_takes_no_longer_than_the_others_is_none(self) -> None:
        one = run((busy(env=0.8), busy(env=0.8)), wait=0.8, sgd=0.02)
        assert judge(replace(one, slow_envs=(7,), slow_env_s=0.01, usual_env_s=0.0001)).names == (causes.ENV,)

    def test_a_different_worker_is_late_each_time(self) -> None:
        late = replace(run((busy(env=0.3), busy(env=0.3)), wait=0.9, sgd=0.05), busiest_s=0.9)
        assert judge(late).names == (causes.STRAGGLERS, causes.ENV)

    def test_a_server_that_takes_long_is_inference_bound_a_way_to_it_is_communication(self) -> None:
        central = replace(run((busy(env=0.05, inference=0.9), busy(env=0.05, inference=0.9)), wait=0.95, sgd=0.05))
        acting, asking = (replace(central, inference="central", act_s=act_s) for act_s in (0.85, 0.05))
        assert judge(acting).names == (causes.INFERENCE,)
        assert judge(asking).names == (causes.COMMUNICATION,)

    def test_side_by_side_only_the_longer_side_holds_up(self) -> None:
        collecting = run((busy(env=1.0),), max_lag=1, wait=0.6, sgd=0.4)
        assert judge(collecting).names == (causes.ENV,)
        learning = run((busy(env=0.3, idle=0.7),), max_lag=1, wait=0.0, sgd=1.0)
        assert judge(learning).names == (causes.LEARNER,)
        assert gain(learning, "--workers") == 1.0

    def test_sides_of_the_same_length_are_balanced(self) -> None:
        even = run((busy(env=1.0),), max_lag=1, wait=0.0, sgd=0.98)
        assert judge(even).names == (causes.BALANCED,)

    def test_threads_that_take_turns_at_one_interpreter_are_not_inference_bound(self) -> None:
        # Each acts and steps for a second of wall time; in all they had one second of one core.
        one = WorkerTimes(env=0.4, inference=0.6, cpu=0.5)
        threads = replace(run((one, one), wait=1.0, sgd=0.1), place="threads")
        verdict = judge(threads)
        assert verdict.names[0] == causes.INTERPRETER
        assert "one interpreter" in verdict.causes[0].evidence
        assert sum(verdict.shares.values()) == pytest.approx(1.0)
        assert advise(threads)[0].options[:3] == ("--topology", "processes", "--workers")
        faster = next(one for one in advise(threads) if "twice as fast" in one.what)
        assert faster.gain == pytest.approx(1.1 / 0.9)  # 0.4 s of stepping and its share of the waiting, halved
        one_core = replace(threads, free_cores=1.0)  # which they wait for as well, and processes would
        assert "one core is free" in judge(one_core).causes[0].evidence
        assert gain(one_core, "processes") == 1.0

    def test_a_thread_that_waits_for_the_interpreter_before_its_first_step_is_not_late(self) -> None:
        # One runs for 0.5 s while the other can't begin: each is busy for 0.6 s of 1 s, and had 0.5 s of the core.
        one = WorkerTimes(env=0.4, inference=0.2, idle=0.4, cpu=0.5)
        threads = replace(run((one, one), wait=1.0, sgd=0.1), place="threads", busiest_s=0.8)
        verdict = judge(threads)
        assert verdict.names[0] == causes.INTERPRETER
        assert verdict.shares[causes.INTERPRETER] == pytest.approx(0.5 / 1.1)
        assert verdict.shares[causes.STRAGGLERS] == verdict.shares[causes.COMMUNICATION] == 0.0

    def test_one_thread_that_does_all_the_work_does_not_wait_for_the_interpreter(self) -> None:
        quick, slow = WorkerTimes(env=0.05, idle=0.95, cpu=0.05), WorkerTimes(env=1.0, cpu=1.0)
        threads = replace(run((quick, slow), wait=1.0, sgd=0.1), place="threads")
        assert judge(threads).names == (causes.IMBALANCE,)

    @pytest.mark.parametrize(
        ("cpu", "place"),
        [
            (0.05, "threads"),  # a policy on a device, or one that sleeps
            (1.0, "threads"),  # both run all the time
            (0.5, "processes"),
        ],
    )
    def test_workers_that_do_not_take_turns_do_not_wait_for_one(self, cpu: float, place: str) -> None:
        one = WorkerTimes(env=0.2, inference=0.8, cpu=cpu)
        other = replace(run((one, one), wait=1.0, sgd=0.1), place=place)
        assert judge(other).names == (causes.INFERENCE,)

    def test_a_busy_machine_is_said_beside_the_cause(self) -> None:
        crowded = replace(run(env=0.9, sgd=0.1), free_cores=1.0)
        assert "Other programs left 1.0 of 4 cores" in judge(crowded).notes[0]
        assert not judge(run(env=0.9, sgd=0.1)).notes


class TestAdvice:
    def test_workers_by_hand(self) -> None:
        # 0.8 s of stepping in 4 workers: 0.2 s, 4 x 400 us to hand over, and 0.2 s of learning
        assert gain(run(env=0.8, sgd=0.2), "--workers") >= 1.0 / (0.2 + 0.0016 + 0.2) - 1e-9

    def test_seven_workers_with_eight_environments_are_as_fast_as_four(self) -> None:
        slow = replace(run(env=0.8, sgd=0.2), actors_cpu_s=0.01, learner_cpu_s=0.21)  # which sleep
        by_count = {one: cycle_of(slow).update_s / _spread(slow, cycle_of(slow), one).update_s for one in (4, 7, 8)}
        assert by_count[4] == pytest.approx(1.0 / (0.2 + 4 * 400e-6 + 0.2))
        assert by_count[7] < by_count[4] < by_count[8]

    def test_a_pool_whose_threads_have_the_cores_is_not_shared_out(self) -> None:
        """The thread that waits for them looks as if it slept: eight workers would be promised on any machine."""
        waits = replace(run(env=0.8, sgd=0.1), is_vector=True, actors_cpu_s=0.1, learner_cpu_s=0.2)
        assert gain(replace(waits, is_vector=False), "--workers") > 4, "one that sleeps is shared out"
        assert gain(waits, "--workers") < 1.1, "one of them may collect beside the learner"
        own = replace(run(env=0.8, sgd=0.1), is_vector=True)
        assert gain(own, "--workers") > 2, "it steps in the thread that calls it"
        assert not any("envpool" in one.what for one in advise(waits)), "it is a pool already"

    def test_workers_need_cores_unless_their_environments_sleep(self) -> None:
        burning = replace(run(env=0.8, sgd=0.2), free_cores=1.0, cores=1)
        assert gain(burning, "--topology") <= 1.0 / 0.8 + 1e-9  # collect while the learner learns, at best
        sleeping = replace(burning, actors_cpu_s=0.01, learner_cpu_s=0.21)
        assert gain(sleeping, "--topology") > 3.0

    def test_a_thread_that_waits_for_a_core_does_not_look_like_one_that_sleeps(self) -> None:
        # Everything took three times as long as its CPU time: learning, too, which never sleeps.
        crowded = replace(run(env=0.6, sgd=0.4), actors_cpu_s=0.2, learner_cpu_s=1 / 3, free_cores=1.0, cores=2)
        assert gain(crowded, "--topology") < 1.7

    def test_overlap_by_hand(self) -> None:
        in_step = run((busy(env=0.5), busy(env=0.5)), wait=0.5, sgd=0.5)
        assert gain(in_step, "--max-lag") == pytest.approx(2.0)

    def test_what_is_hidden_comes_to_light_when_collecting_becomes_shorter(self) -> None:
        # 0.5 s of logs behind 0.9 s of stepping: four workers step for 0.45 s, and then the logs are what takes time.
        hidden = run((WorkerTimes(env=0.9, cpu=0.01),) * 2, wait=0.4, log=0.5, sgd=0.1)
        assert gain(hidden, "--workers") == pytest.approx(1.0 / (0.5 + 0.1))
        # Learning ahead, logs are the learner's: 0.6 s against 0.9 s.
        assert gain(hidden, "--max-lag") == pytest.approx(1.0 / 0.9)
        assert replace(cycle_of(hidden), kind=AHEAD).scaled(env=0.1).update_s == pytest.approx(0.6)

    def test_learning_from_the_first_helps_as_far_as_max_lag_lets_the_others_go_on(self) -> None:
        # Every second update one of four sleeps 1 s longer; the others need 0.1 s, and learning takes 0.1 s.
        workers = (WorkerTimes(env=0.225, cpu=0.01),) * 4
        late = replace(run(workers, wait=0.6, sgd=0.1), busiest_s=0.6, late_s=(0.0, 1.0) * 4, usual_busy_s=0.1)
        # Of 0.375 s of waiting a fifth is filled: 1 s less one update of 0.2 s.
        assert gain(late, "first_come") == pytest.approx(0.7 / (0.225 + 0.8 * 0.375))
        short = replace(late, late_s=(0.0, 0.1) * 4)
        assert gain(short, "first_come") == pytest.approx(0.7 / 0.225)  # all of it

    def test_workers_with_more_environments_differ_by_the_root(self) -> None:
        late = replace(run((WorkerTimes(env=0.3, cpu=0.01),) * 4, wait=0.9, sgd=0.1), busiest_s=0.9, late_s=(0.6,))
        assert gain(late, "--n-envs") == pytest.approx(4 * 1.0 / (4 * 0.3 + 2 * 0.6 + 4 * 0.1))

    def test_fewer_logs_checkpoints_epochs_by_hand(self) -> None:
        assert gain(run(log=0.5, sgd=0.5), "--log-interval") == pytest.approx(1 / 0.55)
        assert gain(run(checkpoint=0.5, sgd=0.5), "--checkpoint-every") == pytest.approx(1 / 0.55)
        assert gain(run(env=0.5, sgd=0.5), "--n-epochs") == pytest.approx(1 / 0.75)

    def test_larger_minibatches_are_advised_only_where_they_were_measured(self) -> None:
        tiny = run(env=0.1, sgd=0.9)
        assert gain(tiny, "--batch-size") == 1.0
        assert gain(tiny, "--batch-size", learning={("batch_size", 512): 0.25}) == pytest.approx(1 / 0.325)

    def test_a_slow_env_can_be_made_faster_by_its_author_only(self) -> None:
        slow = replace(run(env=0.74, sgd=0.1), slow_envs=(3,), slow_env_s=0.0101, usual_env_s=0.0001)
        found = {one.what: one for one in advise(slow)}
        mended = found["make the slow environments as fast as the others"]
        assert not mended.is_applicable
        assert mended.gain == pytest.approx(0.84 / (0.84 - 0.64))

    def test_environments_that_are_equally_slow_are_not_told_to_be_as_fast_as_the_others(self) -> None:
        slow = replace(run(env=0.74, sgd=0.1), slow_envs=(3, 5), slow_env_s=0.0023, usual_env_s=0.0011)
        assert judge(slow).names == (causes.ENV,)
        assert not [one for one in advise(slow) if "slow environments" in one.what]

    def test_processes_instead_of_threads_need_cores_for_their_cpu_time(self) -> None:
        one = WorkerTimes(env=1.0, cpu=0.5)
        threads = replace(run((one, one), max_lag=1, wait=0.2, sgd=0.8), place="threads", free_cores=2.0)
        # 1 s of CPU time in workers and 0.8 s of learning, on two cores
        assert gain(threads, "processes") == pytest.approx(1.0 / 0.9)

    def test_workers_that_cost_more_than_they_save_by_hand(self) -> None:
        # 10 ms of stepping in each of two, 80 ms to wake and wait, 5 ms to hand over, 20 ms of logs behind that.
        tiny = run((busy(env=0.01),) * 2, wait=0.07, hand_over=0.005, log=0.02, sgd=0.01)
        assert judge(tiny).names == (causes.COMMUNICATION,)
        assert gain(tiny, "inline") == pytest.approx((0.09 + 0.005 + 0.01) / (0.02 + 0.01 + 0.02))
        assert ("--topology", "inline", "--workers", "auto") in [one.options for one in advise(tiny)]
        assert gain(run((busy(env=0.5),) * 2, wait=0.5, sgd=0.1), "inline") == 1.0

    def test_a_worker_that_sleeps_on_a_busy_machine_sleeps_inline_too(self) -> None:
        asleep = replace(run((WorkerTimes(env=1.0, cpu=0.01),) * 4, wait=1.0, sgd=0.1), free_cores=2.0)
        assert gain(asleep, "inline") == 1.0
        # What waited for one of two cores does not: 4 x 0.25 s are as long as before, without 0.5 s of waking.
        late = replace(run((WorkerTimes(env=1.0, cpu=0.25),) * 4, wait=1.5, sgd=0.1), free_cores=1.0)
        assert gain(late, "inline") == pytest.approx(1.6 / 1.1)

    def test_one_worker_that_sleeps_on_a_busy_machine_sleeps_as_long_inline(self) -> None:
        quick, slow = WorkerTimes(env=0.1, cpu=0.01), WorkerTimes(env=1.0, cpu=0.01)
        assert gain(replace(run((quick, slow), wait=1.0, sgd=0.1), free_cores=1.0), "inline") == 1.0

    def test_workers_that_sleep_at_different_times_sleep_one_after_the_other_inline(self) -> None:
        # Four of them on two cores, each asleep for 0.3 s, the last one up to 0.9 s: inline that is 1.2 s.
        late = replace(run((WorkerTimes(env=0.3, cpu=0.01),) * 4, wait=0.9, sgd=0.1), busiest_s=0.9, free_cores=2.0)
        assert gain(late, "inline") == 1.0

    def test_the_policy_inline_acts_once_for_all(self) -> None:
        # 64 rows of 15 us are what a call takes, however few rows it has; 2 x 10 ms less one of them.
        tiny = run((busy(inference=0.01),) * 2, wait=0.1, sgd=0.01)
        assert gain(tiny, "inline") == pytest.approx(0.11 / (0.02 - 64 * 15e-6 + 0.01))

    def test_workers_act_themselves_only_without_double_buffering(self) -> None:
        asking = run((busy(env=0.05, inference=0.9),) * 2, wait=0.95, sgd=0.05)
        asking = replace(asking, inference="central", act_s=0.05)
        on = replace(asking, turns=2, options={**asking.options, "double_buffering": "on"})
        assert ("--inference", "local") in [one.options for one in advise(asking)]
        assert ("--inference", "local", "--double-buffering", "auto") in [one.options for one in advise(on)]

    @pytest.mark.parametrize(("shards", "is_advised"), [(0, True), (4, True), (3, False)])
    def test_double_buffering_needs_two_shards_for_each_worker(self, shards: int, is_advised: bool) -> None:
        acting = run((busy(env=0.5, inference=0.45),) * 2, wait=0.95, sgd=0.05)
        central = replace(acting, inference="central", act_s=0.2, options={**acting.options, "shards": shards})
        assert (gain(central, "--double-buffering") > 1.0) == is_advised

    def test_no_more_workers_than_typed_shards(self) -> None:
        slow = run(env=0.9, sgd=0.1)
        typed = replace(slow, options={**slow.options, "shards": 2})
        for evidence, most in ((slow, 4), (typed, 2)):
            counts = [int(one.options[-1]) for one in advise(evidence) if "--workers" in one.options]
            assert max(counts) == most

    def test_max_lag_is_never_lowered(self) -> None:
        options = [one.options for one in advise(run(max_lag=3, env=0.5, sgd=0.5)) if "--max-lag" in one.options]
        assert [one[one.index("--max-lag") + 1] for one in options] == ["3"]

    def test_actions_of_vector_environments_and_masked_ones_are_not_repeated(self) -> None:
        learning = run(env=0.1, sgd=0.9)
        assert gain(learning, "--action-repeat") > 1.5
        assert gain(replace(learning, options={**learning.options, "action_masks": True}), "--action-repeat") == 1.0
        assert gain(replace(learning, is_vector=True), "--action-repeat") == 1.0

    def test_ranked_by_gain_with_options_to_type(self) -> None:
        found = advise(run(env=0.5, sgd=0.3, log=0.2))
        in_steps = [one for one in found if not one.counts_frames]
        assert [one.gain for one in in_steps] == sorted((one.gain for one in in_steps), reverse=True)
        assert all(one.options[0].startswith("--") for one in found if one.options)
        assert all(not one.is_applicable for one in found if one.counts_frames)
        assert isinstance(found[0], Advice)


parts = st.fixed_dictionaries({
    name: st.floats(0.001, 1.0)
    for name in ("env", "inference", "copy", "hand_over", "completion", "advantages", "sgd", "log", "checkpoint",
                 "other")
})  # fmt: skip


@given(parts)
def test_gains_are_real_and_ranked(seconds: dict[str, float]) -> None:
    for one in advise(run(**seconds)):
        assert math.isfinite(one.gain)
        assert one.gain >= 1.05


@given(parts, st.sampled_from(["env", "sgd", "log"]))
def test_to_halve_what_does_not_bind_gains_nothing(seconds: dict[str, float], name: str) -> None:
    cycle = replace(cycle_of(run(**seconds)), kind=AHEAD, cpu_s=0.0)
    is_binding = name in cycle.binding()
    assert (cycle.scaled(**{name: 0.5}).update_s < cycle.update_s) == is_binding


@given(parts, st.sampled_from(sorted(set(PHASES) - {"wait", "view", "episodes", "callback", "evaluation"})))
def test_shares_add_up_and_grow_with_their_phase(seconds: dict[str, float], name: str) -> None:
    before, after = (judge(run(**seconds | {name: factor * seconds[name]})) for factor in (1.0, 2.0))
    assert sum(before.shares.values()) == pytest.approx(1.0)
    cause = next(cause for cause, which in causes._PARTS.items() if name in which)
    assert after.shares[cause] > before.shares[cause]


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.0, 1.0))
def test_ahead_is_never_slower_than_in_step(collect: float, learn: float, beside: float) -> None:
    in_step = Cycle(IN_STEP, 1.0, {"env": collect}, {"sgd": learn}, {"log": beside}, cpu_s=0.0)
    assert replace(in_step, kind=AHEAD).update_s <= in_step.update_s


@pytest.mark.parametrize(("n_envs", "shards", "workers"), [(8, 4, 2), (7, 3, 2), (5, 5, 3), (9, 2, 1)])
def test_the_worker_of_an_environment_is_that_of_its_shard(n_envs: int, shards: int, workers: int) -> None:
    small, extra = divmod(n_envs, shards)
    dealt = [shard % workers for shard in range(shards) for _ in range(small + (shard < extra))]
    seen = replace(run((busy(1.0),) * workers), shards=shards, options={"n_envs": n_envs})
    assert [worker_of(seen, index) for index in range(n_envs)] == dealt
    assert worker_of(seen, n_envs) == -1
