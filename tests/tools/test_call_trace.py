"""The ruler itself, on a toy package whose calls are known: what runs at the start is not counted, all else is.

program ── map.update ─┬─ stage.work ── leaf, record (a dataclass), kernel (compiled) ── inner (compiled)
                       └─ a pipe ──> forked worker: host.serve ── deed.do        thread: aside.run
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from call_log import Event, Function, ProcessLog, TraceError, calls_of, trace
from reading_cost import Cost, Walk, cost_of, walk_of

LONG = "a = 1\n    b = a + 1\n    c = b + 1\n    d = c + 1"  # more than a glance
PACKAGE = {
    "__init__.py": "",
    "build.py": f"def build():\n    {LONG}\n    return d\n",
    "session.py": f"""
        from toy import map

        def loop(parts, updates, after):
            for number in range(updates):
                {LONG.replace("    ", " " * 16)}
                map.update(parts)
                after(number + 1)
    """,
    "map.py": f"""
        from toy import stage

        def update(parts):
            {LONG.replace("    ", " " * 12)}
            stage.work(parts)
            parts.line.send(1)
            parts.line.recv()
    """,
    "stage.py": f"""
        import numpy as np

        from toy.kernel import scale
        from toy.leaf import number_of
        from toy.record import Record

        def work(parts):
            {LONG.replace("    ", " " * 12)}
            scale(np.ones(3), number_of(parts))
            return Record(1)
    """,
    "leaf.py": "def number_of(parts):\n    return 2.0\n",
    "record.py": "from dataclasses import dataclass\n\n@dataclass\nclass Record:\n    value: int\n",
    "kernel.py": """
        import numba

        from toy.inner import twice

        @numba.njit
        def scale(values, factor):
            for i in range(len(values)):
                one = values[i]
                other = twice(factor)
                product = one * other
                values[i] = product
    """,
    "inner.py": "import numba\n\n@numba.njit\ndef twice(a):\n    b = a\n    c = b\n    d = c\n    return d + b\n",
    "host.py": f"""
        from toy import deed

        def serve(line):
            {LONG.replace("    ", " " * 12)}
            while True:
                one = line.recv()
                if one is None:
                    break
                line.send(deed.do(one))
    """,
    "deed.py": f"def do(one):\n    {LONG}\n    return one\n",
    "aside.py": f"def run(turns):\n    for _ in turns:\n        turn()\n\ndef turn():\n    {LONG}\n",
    "never.py": f"def never():\n    {LONG}\n",
}
PROGRAM = """
    import multiprocessing
    import threading
    from types import SimpleNamespace

    from sitecustomize import open_window
    from toy import aside, build, host, never, session


    def main():
        build.build()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["toy.host"])
        ours, theirs = context.Pipe()
        worker = context.Process(target=host.serve, args=(theirs,), daemon=True)
        worker.start()
        turns, taken = threading.Semaphore(0), threading.Semaphore(0)

        def next_turn():
            taken.release()  # the one before is over
            return turns.acquire()

        thread = threading.Thread(target=aside.run, args=(iter(next_turn, None),), daemon=True)
        thread.start()
        taken.acquire()

        def after(number):
            turns.release()
            taken.acquire()
            if number == 2:
                open_window(True)
            elif number == 5:
                open_window(False)

        session.loop(SimpleNamespace(line=ours), 6, after)
        ours.send(None)
        worker.join()
        print(3)


    if __name__ == "__main__":
        main()
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[ProcessLog], Cost]:
    folder = tmp_path_factory.mktemp("toy")
    package = folder / "src" / "toy"
    package.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (package / name).write_text(textwrap.dedent(text))
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    logs, watched = trace([str(folder / "program.py")], package)
    assert watched == 3
    return logs, cost_of(logs, package, watched, "map.py")


def test_what_runs_again_is_on_the_path(toy: Any) -> None:
    _, cost = toy
    assert set(cost.of("path")) == {"map.py", "stage.py", "kernel.py", "inner.py", "host.py", "deed.py", "aside.py"}


def test_start_up_and_what_never_runs_is_not_there(toy: Any) -> None:
    _, cost = toy
    assert not {"build.py", "never.py", "__init__.py"} & set(cost.files)


def test_a_line_or_a_record_is_a_glance_and_the_session_is_around(toy: Any) -> None:
    _, cost = toy
    assert set(cost.of("glance")) == {"leaf.py", "record.py"}
    assert set(cost.of("around")) == {"session.py"}


def test_compiled_functions_are_seen_also_behind_compiled_ones(toy: Any) -> None:
    logs, cost = toy
    kinds = {event.function.name: event.function.kind for log in logs for event in log.events}
    assert kinds["scale"] == kinds["twice"] == "compiled"
    assert (cost.files["kernel.py"].ran, cost.files["inner.py"].ran) == (5, 4)


def test_the_walk_goes_from_caller_to_callee_and_back(toy: Any) -> None:
    _, cost = toy
    assert cost.walk.files[:2] == ("host.py", "deed.py")
    assert "map.py > stage.py > kernel.py > inner.py" in " > ".join(cost.walk.files)
    figures = cost.figures()
    assert figures["hops"] == figures["files"] - 1 + figures["back"]


def test_calls_into_the_map_are_counted_per_update(toy: Any) -> None:
    _, cost = toy
    assert cost.spine_calls == 1.0


def test_calls_and_lines_agree(toy: Any) -> None:
    _, cost = toy
    assert cost.disputed == ()


def test_a_worker_that_is_never_called_again_is_seen_by_its_calls(toy: Any) -> None:
    """host.serve was entered before the window and is not left in it: only its callee and its lines tell."""
    logs, _ = toy
    callers = {caller.name for log in logs if not log.is_program for caller, _ in calls_of(log) if caller is not None}
    assert callers == {"serve"}


def test_a_walk_comes_back_to_open_another_file() -> None:
    a, b, c = (Function(f"{name}.py", 1, "python", name) for name in "abc")
    walk = walk_of([(None, a), (a, b), (b, b), (a, b), (a, c)], {"a.py", "b.py", "c.py"})
    assert walk == Walk(("a.py", "b.py", "a.py", "c.py"))
    assert (walk.hops, walk.back) == (3, 1)


def test_an_import_within_the_window_is_no_silent_cost(tmp_path: Path) -> None:
    log = ProcessLog(True, [Event(True, "1", Function("late.py", 1, "python", "<module>"))])
    with pytest.raises(TraceError, match=r"late\.py: imported within the window"):
        cost_of([log], tmp_path, 1)


def test_a_child_that_starts_within_the_window_is_left_out_if_another_was_there(tmp_path: Path) -> None:
    """joblib may start an idle process late; on a slow machine its imports fell into the window."""
    for name in ("__init__.py", "host.py", "life.py"):
        (tmp_path / name).write_text("\n" * 9)
    start = [Event(True, "1", Function(name, 1, "python", "<module>")) for name in ("__init__.py", "life.py")]
    serve = Event(True, "1", Function("host.py", 1, "python", "serve", frozenset(range(2, 9))))
    lines = {("host.py", line) for line in range(2, 9)}
    program, late = ProcessLog(True), ProcessLog(False, [*start])
    cost = cost_of([program, late, ProcessLog(False, [serve], lines)], tmp_path, 1)
    assert set(cost.files) == {"host.py"}
    with pytest.raises(TraceError, match="every child was started within the window"):
        cost_of([program, late], tmp_path, 1)
    with pytest.raises(TraceError, match=r"life\.py: imported within the window"):
        cost_of([program, ProcessLog(False, [start[1], serve], lines)], tmp_path, 1)


def test_a_program_that_fails_says_how(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('no such luck')")
    with pytest.raises(TraceError, match=r"exit code 1.*\n.*no such luck"):
        trace([str(program)], tmp_path / "toy")
