"""From a run's files to numbers per update: which records count, and what is not believed. Any file may be read."""

import math
from typing import Any

import pytest

from headrace.envs import serial
from headrace.planning import evidence
from headrace.planning import verdict as causes
from headrace.planning.advice import advise
from headrace.planning.cycle import worker_of
from headrace.planning.evidence import evidence_of
from headrace.planning.verdict import judge


def record(update: int, **seconds: float) -> dict[str, float]:
    return {
        "time/iterations": update,
        "time/total_timesteps": 512.0 * update,
        **{f"headrace/{name}": value for name, value in seconds.items()},
    }


def session(updates: int, seconds: dict[str, float], begin: dict[str, float], start: int = 0) -> list[dict[str, float]]:
    """Records of one session, whose clock starts at zero; `begin` is in the first one, too."""
    return [
        record(start + n, **seconds, **(begin if n == 1 else {})) | {"time/time_elapsed": float(n)}
        for n in range(1, updates + 1)
    ]


class TestEvidence:
    def test_means_per_update_without_the_first_record(self) -> None:
        first = record(1, **{"time/env": 100.0})
        seen = evidence_of([first, *(record(n, **{"time/env": 0.5, "time/sgd": 0.1}) for n in range(2, 8))], {}, {})
        assert seen.learner["env"] == pytest.approx(0.5)
        assert (seen.updates, seen.steps) == (6, 512)
        assert seen.sps == pytest.approx(512 / 0.6)

    def test_of_a_resumed_run_the_newest_session_counts(self) -> None:
        first = session(10, {"time/wait": 9.0, "worker_0/env_s": 9.0}, {"time/other": 50.0})
        second = session(10, {"time/env": 0.5}, {"time/other": 70.0}, start=10)
        seen = evidence_of([*first, *second], {}, {})
        assert (seen.updates, seen.learner["other"], seen.learner["wait"]) == (9, 0.0, 0.0)
        assert seen.update_s == pytest.approx(0.5)

    def test_a_short_session_is_read_with_earlier_ones_of_the_same_place(self) -> None:
        elsewhere = session(10, {"time/wait": 9.0, "worker_0/env_s": 9.0}, {})
        earlier = session(10, {"time/env": 0.5}, {"time/other": 50.0}, start=10)
        newest = session(3, {"time/env": 0.5}, {"time/other": 70.0}, start=20)
        seen = evidence_of([*elsewhere, *earlier, *newest], {}, {})
        assert (seen.updates, seen.steps) == (9 + 2, 512)
        assert seen.update_s == pytest.approx(0.5)
        assert judge(evidence_of([*elsewhere, *newest], {}, {})).names == (causes.TOO_SHORT,)

    def test_records_of_every_tenth_update_count_steps_of_one(self) -> None:
        assert evidence_of([record(10 * n) for n in range(1, 8)], {}, {}).steps == 512

    def test_one_slow_env_is_found_by_its_number(self) -> None:
        times = {"envs/slowest": 3.0, "envs/slowest_s": 0.01, "envs/median_s": 0.001, "time/env": 1.0}
        seen = evidence_of([record(n, **times) for n in range(1, 12)], {"topology": {"n_envs": 8}}, {})
        assert (seen.slow_envs, seen.slow_env_s, seen.usual_env_s) == ((3,), 0.01, 0.001)

    @pytest.mark.parametrize(("slow", "named"), [(1, (3,)), (2, ())])
    def test_one_slow_env_is_not_named_if_there_must_be_another(self, slow: int, named: tuple[int, ...]) -> None:
        # 10 ms a step of the slow ones, 1 ms one of the others. What resets and loops take beside steps says nothing.
        mean_s = (slow * 0.01 + (8 - slow) * 0.001) / 8
        times = {"envs/slowest": 3.0, "envs/slowest_s": 0.01, "envs/median_s": 0.001, "envs/mean_s": mean_s}
        for env_s in (0.0, 64 * 8 * mean_s, 640 * 8 * mean_s):
            records = [record(n, **times, **{"time/env": env_s}) for n in range(1, 12)]
            assert evidence_of(records, {"topology": {"n_envs": 8}}, {}).slow_envs == named

    @pytest.mark.parametrize("place", ["threads", "processes"])
    @pytest.mark.parametrize("times", [{"worker_0/cpu_s": 0.8}, {"worker_0/env_s": 0.9, "worker_1/env_s": 0.9,
                                                                 "worker_0/cpu_s": 0.8}])  # fmt: skip
    @pytest.mark.parametrize("max_lag", [0, 1])
    def test_records_with_holes_are_judged(self, place: str, times: dict[str, float], max_lag: int) -> None:
        where = {"topology": place, "workers": 2, "shards": 2, "cores": 2, "max_lag": max_lag}
        config = {"topology": {"n_envs": 4, "max_lag": max_lag}}
        seen = evidence_of([record(n, **times, **{"time/wait": 0.9}) for n in range(1, 12)], config, {"where": where})
        assert sum(judge(seen).shares.values()) < 1.01
        assert all(math.isfinite(one.sps) for one in advise(seen))

    @pytest.mark.parametrize("rows", [32, 64, 128, 1000])
    @pytest.mark.parametrize(("first_s", "each_s", "named"), [(0.4, 1e-5, ()), (0.01, 0.01, (3,)), (0.05, 0.01, (3,))])
    def test_a_single_slow_step_is_no_slow_env(
        self, rows: int, first_s: float, each_s: float, named: tuple[int, ...]
    ) -> None:
        """What a record has is a mean that keeps 7 of 8 parts at every timed row, as envs/serial does it."""
        slowest_s, records = first_s, list[dict[str, float]]()
        for row in range(1, 4001):
            if row % serial._TIMED_ROWS == 0:
                slowest_s += (each_s - slowest_s) / serial._FEW
            if row % rows == 0:
                times = {"envs/slowest": 3.0, "envs/slowest_s": slowest_s, "envs/median_s": 1e-6, "time/env": 1.0}
                records.append(record(row // rows, **times) | {"time/total_timesteps": 8.0 * row})
        seen = evidence_of(records[:60], {"topology": {"n_envs": 8}}, {})
        assert seen.slow_envs == (named if len(records) > 4 else ())

    def test_a_slow_env_is_found_in_a_short_run(self) -> None:
        """Three timed rows, as in 1.5 s of steps of 5 ms; a single slow one among them is none."""
        for means, named in (([5e-3] * 7, (3,)), ([5e-3 * (7 / 8) ** (n / 2) for n in range(7)], ())):
            times = {"envs/slowest": 3.0, "envs/median_s": 1e-6, "time/env": 1.0}
            records = [
                record(n, **times | {"envs/slowest_s": mean_s}) | {"time/total_timesteps": 8.0 * 32 * n}
                for n, mean_s in enumerate(means, 2)
            ]
            assert evidence_of(records, {"topology": {"n_envs": 8}}, {}).slow_envs == named

    def test_what_is_known_of_timed_rows_is_so(self) -> None:
        assert (evidence._TIMED_ROWS, evidence._KEPT) == (serial._TIMED_ROWS, 1 - 1 / serial._FEW)

    @pytest.mark.parametrize(
        ("times", "verdict"),
        [
            ([0.9] * 13, causes.IMBALANCE),
            ([0.8, 1.0, 0.7, 0.9, 1.2, 0.4, 0.9, 0.8, 1.1, 0.6, 0.9, 1.3, 0.5], causes.IMBALANCE),
            ([0.1] * 5 + [9.0] + [0.1] * 7, causes.STRAGGLERS),
            ([0.1, 0.1, 1.8, 0.1, 0.1, 3.3, 0.1, 0.1, 0.1, 0.1, 2.1, 0.1, 0.1], causes.STRAGGLERS),
        ],
    )
    def test_a_worker_that_is_late_now_and_then_may_be_so_by_chance(self, times: list[float], verdict: str) -> None:
        records = [
            record(n, **{"time/wait": max(own_s, 0.1), "worker_0/env_s": 0.1, "worker_1/env_s": own_s})
            for n, own_s in enumerate(times, 1)
        ]
        where = {"where": {"topology": "processes", "workers": 2}}
        found = judge(evidence_of(records, {"topology": {"n_envs": 8}}, where))
        assert found.names[0] == verdict
        if times == [0.1] * 5 + [9.0] + [0.1] * 7:  # 0.1 s and 10.1 s / 12: half of their sum
            assert "842 ms, each of them 471 ms on average" in found.causes[0].evidence

    def test_environments_that_are_slow_in_turns_are_not_slow_envs(self) -> None:
        records = [
            record(n, **{"envs/slowest": float(n % 8), "envs/slowest_s": 0.01, "envs/median_s": 0.001})
            for n in range(40)
        ]
        assert evidence_of(records, {"topology": {"n_envs": 8}}, {}).slow_envs == ()

    def test_time_in_which_workers_were_replaced_is_not_passed_over(self) -> None:
        """Every fourth update takes 2 s more: half a second of each, three times as much as a usual one takes."""
        where = {"where": {"topology": "processes", "workers": 2, "shards": 2, "cores": 2}}
        usual = {"worker_0/env_s": 0.1, "worker_1/env_s": 0.1, "time/sgd": 0.05}
        records = [
            record(n, **usual, **{"time/wait": 2.1 if n % 4 == 0 else 0.1, "restarts": float(n // 4)})
            for n in range(1, 42)
        ]
        (note,) = judge(evidence_of(records, {"topology": {"n_envs": 8}}, where)).notes
        assert note.startswith("An update takes 650 ms on average, 500 ms more than a usual one"), note
        assert note.endswith("workers were replaced 10 times, log.txt says why.")
        calm = [one | {"headrace/time/wait": 0.1} for one in records]
        assert not judge(evidence_of(calm, {"topology": {"n_envs": 8}}, where)).notes

    def test_workers_are_taken_from_where_the_run_took_place(self) -> None:
        times = {"worker_0/env_s": 0.2, "worker_1/env_s": 0.6, "worker_1/idle_s": 0.1, "time/wait": 0.6}
        where = {"topology": "processes", "workers": 2, "shards": 2, "cores": 2}
        seen = evidence_of([record(n, **times) for n in range(1, 9)], {}, {"where": where})
        assert [one.busy for one in seen.workers] == pytest.approx([0.2, 0.6])
        assert seen.busiest_s == pytest.approx(0.6)

    def test_workers_that_are_late_in_most_updates_are_not_hard_to_reach(self) -> None:
        # In two of three updates one of them sleeps for 0.6 s; then the learner waits for it, and 10 ms more.
        where = {"topology": "processes", "workers": 2, "shards": 2, "cores": 2}
        late = [0.6 if n % 3 else 0.1 for n in range(31)]
        times = [{"worker_0/env_s": (own, 0.1)[n % 2], "worker_1/env_s": (0.1, own)[n % 2], "time/wait": own + 0.01}
                 for n, own in enumerate(late)]  # fmt: skip
        seen = evidence_of([record(n, **one) for n, one in enumerate(times, 1)], {}, {"where": where})
        assert seen.collected_s - seen.busiest_s == pytest.approx(0.01)
        assert judge(seen).shares[causes.COMMUNICATION] < 0.05

    def test_a_checkpoint_now_and_then_is_not_collecting(self) -> None:
        where = {"topology": "processes", "workers": 2, "shards": 2, "cores": 2}
        usual = {"worker_0/env_s": 0.1, "worker_1/env_s": 0.1, "time/wait": 0.11}
        rare = [usual | ({"time/checkpoint": 2.0} if n % 4 == 0 else {}) for n in range(1, 32)]
        seen = evidence_of([record(n, **one) for n, one in enumerate(rare, 1)], {}, {"where": where})
        assert seen.collected_s == pytest.approx(0.11)
        assert judge(seen).names[0] == causes.CHECKPOINTS

    @pytest.mark.parametrize(("wait_s", "env_s"), [(0.07, 0.1), (0.2, 0.3)])
    def test_an_evaluation_now_and_then_is_not_waking_where_workers_run_ahead(
        self, wait_s: float, env_s: float
    ) -> None:
        """They stop as soon as they are as far ahead as they may be: what is rare comes on top of either side."""
        where = {"topology": "processes", "workers": 1, "shards": 1, "cores": 2, "max_lag": 1}
        usual = {"worker_0/env_s": env_s, "time/wait": wait_s, "time/sgd": 0.02}
        rare = [usual | ({"time/evaluation": 10.0} if n % 10 == 0 else {}) for n in range(1, 42)]
        seen = evidence_of(
            [record(n, **one) for n, one in enumerate(rare, 1)], {"session": {"eval_every": 5120}}, {"where": where}
        )
        verdict = judge(seen)
        assert verdict.names[0] == causes.EVALUATIONS, verdict.sentence
        assert verdict.shares[causes.COMMUNICATION] < 0.05
        best = advise(seen)[0]
        assert best.options == ("--eval-every", "51200")
        assert best.gain == pytest.approx((env_s + 1.0) / (env_s + 0.1), rel=0.05)

    def test_threads_of_which_now_one_and_now_the_other_begins_late_wait_for_the_interpreter(self) -> None:
        # Collecting takes 60 ms, all of it one core's; a thread is busy for 40 ms or, if it began at once, for 60.
        where = {"topology": "threads", "workers": 2, "shards": 2, "cores": 2}
        each = [{f"worker_{one}/{name}_s": (0.06 if n % 2 and one == 0 else 0.04) if name == "env" else 0.03
                 for one in (0, 1) for name in ("env", "cpu")} | {"time/wait": 0.06, "time/sgd": 0.002}
                for n in range(1, 20)]  # fmt: skip
        verdict = judge(evidence_of([record(n, **one) for n, one in enumerate(each, 1)], {}, {"where": where}))
        assert causes.INTERPRETER in verdict.names
        assert verdict.shares[causes.INTERPRETER] == pytest.approx(0.03 / 0.062)

    @pytest.mark.parametrize(
        ("config", "result"),
        [
            ({"topology": 7, "session": []}, {"where": "here"}),
            ({"topology": {"n_envs": "many", "n_epochs": 10**40}}, {"where": {"workers": -3, "topology": []}}),
            ({"topology": {"n_envs": math.nan}}, {"where": {"topology": "processes", "workers": 10**9}}),
        ],
    )
    def test_files_may_say_anything(self, config: dict[str, Any], result: dict[str, Any]) -> None:
        odd = [record(n, **{"time/env": math.nan, "time/sgd": -5.0, "envs/slowest": 1e300}) for n in range(9)]
        judge(evidence_of(odd, config, result))
        advise(evidence_of([record(n, **{"time/env": 1.0}) for n in range(9)], config, result))

    def test_numbers_that_no_clock_says_are_passed_over(self) -> None:
        sound = {"time/env": 0.5, "envs/median_s": 0.001, "envs/slowest": 3.0}  # without slowest_s
        huge = dict.fromkeys(("time/env", "time/sgd", "free_cores", "envs/median_s"), 1e308)
        records = [record(n, **sound) for n in range(1, 12)] + [record(n, **huge) for n in range(12, 24)]
        seen = evidence_of(records, {"topology": {"n_envs": 8}}, {})
        assert seen.update_s == pytest.approx(0.5 * 10 / 22)
        assert seen.slow_envs == ()

    def test_shards_are_bounded_by_the_environments(self) -> None:
        times = {"envs/slowest": 3.0, "envs/slowest_s": 0.01, "envs/median_s": 0.001, "worker_0/env_s": 1.0}
        where = {"topology": "processes", "workers": 1, "shards": 20_000_000}
        records = [record(n, **times) for n in range(1, 12)]
        assert evidence_of(records, {"topology": {"n_envs": 8}}, {"where": where}).shards == 8
        huge = evidence_of(records, {"topology": {"n_envs": 1 << 30}}, {"where": where})
        assert huge.shards == 1 << 16
        assert worker_of(huge, (1 << 30) - 1) == 0

    def test_a_pool_and_what_is_not_timed_one_by_one_are_vector_environments(self) -> None:
        several = {"topology": {"n_envs": 8}}
        timed = [record(n, **{"envs/median_s": 0.1}) for n in range(9)]
        assert not evidence_of(timed, several, {}).is_vector
        assert evidence_of(timed, {**several, "env": {"env": "envpool:Pong-v5"}}, {}).is_vector
        assert evidence_of([record(n) for n in range(9)], several, {}).is_vector

    def test_no_records(self) -> None:
        assert judge(evidence_of([], {}, {})).names == (causes.TOO_SHORT,)
