"""The terminal view: plain lines at their pace, a panel that fits and adds up, and a run that outlives its terminal."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable

import pytest
from rich.console import Console

from headrace.telemetry.sinks import Record
from headrace.views.panel import render_panel
from headrace.views.process_usage import ProcessUsage, Usage
from headrace.views.progress import Curve, Progress
from headrace.views.terminal import TerminalView
from headrace.views.text_layout import ASCII, UNICODE, Glyphs

PHASES = ("env", "inference", "copy", "completion", "advantages", "sgd", "wait", "other")
FACTS = {"env": "CartPole-v1", "topology": "processes", "max_lag": "1", "inference": "local", "seed": "1"}


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_record(update: int, **more: float) -> Record:
    """Update number `update` of a run at 2,048 steps per tenth of a second."""
    times = dict(zip(PHASES, (0.0543, 0.0071, 0.0013, 0.0017, 0.0004, 0.0329, 0.0014, 0.0009), strict=True))
    return {
        "time/total_timesteps": 2048 * update,
        "time/time_elapsed": 0.1 * update,
        "time/iterations": update,
        "headrace/sps": 20480.0,
        "train/approx_kl": 0.0081,
        "train/entropy_loss": -0.61,
        **{f"headrace/time/{name}": value for name, value in times.items()},
    } | more


def an_episode_record(update: int) -> Record:
    return a_record(
        update, **{"rollout/ep_rew_mean": 43.12 + update, "rollout/ep_len_mean": 44.0, "eval/mean_reward": 99.5}
    )


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False)


def terminal(width: int = 80) -> Console:
    return Console(
        file=io.StringIO(), record=True, force_terminal=True, width=width, height=40, color_system="truecolor"
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_a_terminal_would_obey_or_can_not_show() -> None:
    """An environment's name and a worker's message may hold anything; a stream may have ASCII alone, and be strict."""
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, "ascii", errors="strict"), force_terminal=False)
    with TerminalView("name", 100, {"environment": "é\x1b[2J\nname", "seed": "环\r"}, console) as view:
        view.message("two\nlines \ud800 \U0001f600 \x1b]0;x\x07")
        view.update(a_record(1))
    console.file.flush()
    lines = raw.getvalue().decode("ascii").splitlines()
    assert lines[:2] == ["environment  \\xe9\\x1b[2J\\nname", "seed         \\u73af\\x0d"]
    assert lines[2:4] == ["two", "lines \\ud800 \\U0001f600 \\x1b]0;x\\x07"]
    assert lines[4].startswith("step 2048/100")


def test_a_view_that_fails_ends_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it is: a closed file is a ValueError."""
    console = pipe()
    with TerminalView("name", 100, {}, console) as view:
        console.file.close()
        view.update(a_record(1))
        view.message("nobody hears it")
    assert [one.getMessage() for one in caplog.records] == [
        "the terminal view is gone, the run goes on: ValueError: I/O operation on closed file"
    ]


def test_no_stdout_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """`>&-`"""
    monkeypatch.setattr(sys, "stdout", None)
    with TerminalView("name", 100, {}) as view:
        view.update(a_record(1))


class TestPlainLines:
    def test_first_then_one_every_ten_seconds_then_last(self) -> None:
        clock, console = FakeClock(), pipe()
        with TerminalView("PPO", 204_800, FACTS, console, clock) as view:
            for update in range(1, 101):
                view.update(a_record(update))
                clock.now_s += 0.25  # 25 seconds in all
        lines = written(console).splitlines()
        steps = [int(line.split()[1].split("/")[0]) // 2048 for line in lines[len(FACTS) :]]
        assert lines[0].startswith("env          CartPole-v1")
        assert steps == [1, 41, 81, 100]

    def test_a_last_record_already_shown_is_not_shown_twice(self) -> None:
        console = pipe()
        with TerminalView("PPO", 2048, FACTS, console, FakeClock()) as view:
            view.update(a_record(1))
        assert written(console).count("step ") == 1

    def test_a_run_without_updates_shows_no_line(self) -> None:
        console = pipe()
        with TerminalView("PPO", 2048, FACTS, console, FakeClock()):
            pass
        assert "step " not in written(console)

    def test_the_last_line_comes_when_the_run_fails_too(self) -> None:
        clock, console = FakeClock(), pipe()

        def failing_run() -> None:
            with TerminalView("PPO", 20480, FACTS, console, clock) as view:
                view.update(a_record(1))
                view.update(a_record(2))
                raise RuntimeError("boom")

        with pytest.raises(RuntimeError, match="boom"):
            failing_run()
        assert "step 4096/20480 (20%)" in written(console)

    def test_what_a_line_says(self) -> None:
        progress = Progress(150_000)
        progress.add(an_episode_record(9))
        progress.add(a_record(10))
        assert progress.plain_line() == (
            "step 20480/150000 (14%)  ret 52.1  len 44.0  eval 99.5  sps 20,480  kl 0.008  env 54% inference 7% sgd 33%"
        )

    def test_before_any_episode_ended_and_without_times(self) -> None:
        progress = Progress(150_000)
        progress.add({"time/total_timesteps": 2048})
        assert progress.plain_line() == "step 2048/150000 (1%)  sps -"

    def test_a_phase_that_eats_the_time_is_named(self) -> None:
        progress = Progress(150_000)
        progress.add(a_record(1, **{"headrace/time/wait": 0.5}))
        assert "wait 84%" in progress.plain_line()

    def test_in_ci_a_terminal_gets_plain_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CI", "true")
        console = terminal()
        with TerminalView("PPO", 2048, FACTS, console, FakeClock()) as view:
            view.update(a_record(1))
        assert "╭" not in written(console)
        assert "\x1b" not in written(console)
        assert "step 2048/2048 (100%)" in written(console)


class TestPanel:
    @pytest.mark.parametrize("width", [80, 120])
    def test_the_shown_percentages_add_to_100(self, width: int) -> None:
        clock, console = FakeClock(), terminal(width)
        with TerminalView("PPO on CartPole-v1", 204_800, FACTS, console, clock) as view:
            view.update(an_episode_record(1))
            clock.now_s += 1
            view.update(an_episode_record(2))
        last = console.export_text().rpartition("╭─")[2]
        shown = dict(re.findall(rf"\b({'|'.join(PHASES)}) +(\d+)%", last))
        groups = dict(re.findall(r"\b(collect|learn|wait|other) +(\d+)%", last))
        assert set(shown) == set(PHASES)
        assert sum(map(int, shown.values())) == 100
        assert sum(map(int, groups.values())) == 100
        assert abs(int(shown["env"]) - 54.3) < 1
        assert "4,096 / 204,800 steps" in last

    @pytest.mark.parametrize("width", [60, 80, 99, 100, 120])
    @pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
    def test_it_is_a_rectangle_of_24_lines_at_most(self, width: int, glyphs: Glyphs) -> None:
        progress = Progress(10**10)
        for update in range(1, 40):
            progress.add(an_episode_record(update) | {"train/std": 0.6, "headrace/ledger/produced": 123_456_789.0})
        usage = Usage(cpu_percent=1234.5, memory_bytes=312 * 10**9)
        lines = render_panel("a title " * 30, FACTS, progress, usage, 1e6, width, glyphs).plain.splitlines()
        assert {len(line) for line in lines} == {width}
        assert len(lines) <= (24 if width >= 80 else 30)
        if glyphs is ASCII:
            assert "".join(lines).isascii()
        assert re.search(r"produced +123\.5M", "\n".join(lines)), "a number is never cut"

    def test_entropy_is_shown_positive(self) -> None:
        progress = Progress(2048)
        progress.add(a_record(1))
        text = render_panel("PPO", FACTS, progress, Usage(0, 0), 0.0, 120).plain
        assert re.search(r"entropy +0\.610", text)

    def test_before_the_first_numbers(self) -> None:
        progress = Progress(2048)
        progress.add({"time/total_timesteps": 0, "train/value_loss": float("nan")})
        text = render_panel("PPO", {}, progress, Usage(0, 0), 0.0, 80).plain
        assert "not measured yet" in text
        assert re.search(r"value +nan", text)

    def test_it_is_redrawn_at_most_four_times_a_second(self) -> None:
        clock, console = FakeClock(), terminal()
        with TerminalView("PPO", 10**6, FACTS, console, clock) as view:
            for update in range(1, 201):
                view.update(a_record(update))
                clock.now_s += 0.0625  # 12.5 seconds in all, in steps a float holds exactly
            before_exit = written(console).count("╭─")
        assert before_exit == 50
        assert "409,600" in written(console).rpartition("╭─")[2], "the last record is drawn on the way out"

    def test_a_slow_terminal_is_drawn_less_often(self) -> None:
        clock, console = FakeClock(), terminal()
        write = console.file.write

        def slow_write(text: str) -> int:
            clock.now_s += 0.1 if "╭─" in text else 0.0
            return write(text)

        console.file.write = slow_write  # type: ignore[method-assign]
        with TerminalView("PPO", 10**6, FACTS, console, clock) as view:
            view.update(a_record(1))
            clock.now_s += 5.0
            view.update(a_record(2))
            assert written(console).count("╭─") == 1, "0.1 s of drawing is worth 10 s of training"
            clock.now_s += 5.0
            view.update(a_record(3))
            assert written(console).count("╭─") == 2

    def test_a_message_stays_and_is_not_markup(self) -> None:
        console = terminal()
        with TerminalView("PPO", 2048, FACTS, console, FakeClock()) as view:
            view.update(a_record(1))
            view.message("worker 1 died [red]exit -9[/red]")
        assert "worker 1 died [red]exit -9[/red]" in console.export_text()

    def test_no_color_means_no_colour(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def draw() -> str:
            console = terminal()
            with TerminalView("PPO", 2048, FACTS, console, FakeClock()) as view:
                view.update(a_record(1))
            return written(console)

        coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]")
        assert coloured.search(draw())
        monkeypatch.setenv("NO_COLOR", "1")
        assert not coloured.search(draw())

    def test_no_thread_is_started(self) -> None:
        before = threading.active_count()
        with TerminalView("PPO", 2048, FACTS, terminal(), FakeClock()) as view:
            view.update(a_record(1))
            assert threading.active_count() == before


class TestTheTerminalGoesAway:
    @pytest.mark.parametrize("make", [pipe, terminal])
    def test_the_run_goes_on(self, make: Callable[[], Console], caplog: pytest.LogCaptureFixture) -> None:
        clock, console, stdout = FakeClock(), make(), sys.stdout

        def broken(*_: object) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        with TerminalView("PPO", 204_800, FACTS, console, clock) as view:
            console.file.write = broken
            for update in range(1, 5):
                view.update(a_record(update))
                clock.now_s += 60.0
            view.message("nobody reads this")
        assert caplog.text.count("the terminal view is gone") == 1
        assert sys.stdout is stdout


class TestProgress:
    def test_speed_and_remaining_time_are_of_the_last_ten_seconds(self) -> None:
        progress = Progress(400_000)
        for second in range(1, 101):
            progress.add({"time/total_timesteps": 1000 * second, "time/time_elapsed": second})
        for second in range(101, 121):
            progress.add({"time/total_timesteps": 100_000 + 5000 * (second - 100), "time/time_elapsed": second})
        assert progress.sps == pytest.approx(5000.0)
        assert progress.remaining_s == pytest.approx(200_000 / 5000)

    def test_a_run_past_its_total_has_nothing_left(self) -> None:
        progress = Progress(1000)
        progress.add(a_record(1))
        assert progress.fraction == 1.0
        assert progress.remaining_s == 0.0

    def test_a_long_trace_keeps_its_shape_in_bounded_memory(self) -> None:
        trace = Curve(max_points=64)
        for value in range(10_000):
            trace.add(float(value))
        trace.add(float("nan"))
        points = trace.resampled(10)
        assert len(trace.resampled(1000)) <= 64
        assert len(points) == 10
        assert points == sorted(points)
        assert points[0] < 1_000
        assert points[-1] > 9_000


def test_cpu_is_the_average_since_the_last_look() -> None:
    clock, cpu_clock = FakeClock(), FakeClock()
    usage = ProcessUsage(clock, cpu_clock)
    clock.now_s += 2.0
    cpu_clock.now_s += 3.0
    assert usage.sample().cpu_percent == 150.0
    assert usage.sample().cpu_percent == 150.0, "no time has passed: the last answer holds"
    clock.now_s += 1.0
    assert usage.sample().cpu_percent == 0.0
    assert usage.sample().memory_bytes > 10**6
