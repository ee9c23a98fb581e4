"""The command line as a test uses it: in this process for speed, or as a real one for signals and start-up.

    run("train", ...)      headrace.cli.main in this process -> Outcome (exit code, stdout, stderr)
    start("train", ...)    a process of its own -> Popen, with tests/ on its path

Both work in `cwd`, so that whatever a command leaves behind is found there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from headrace.cli.main import main

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])  # of processes that tests start: this tree's own code
ERROR = "headrace: error: "

# A run of some hundred milliseconds that still has several updates, minibatches, episodes and checkpoints.
TINY = ("--n-envs", "2", "--n-steps", "4", "--batch-size", "4", "--n-epochs", "2", "--seed", "7", "--quiet")


WITHOUT_REPORT = """
import sys
from headrace.cli.main import main
from headrace.views import report
report.write_report = lambda run_dir, has_figure=True: None
sys.exit(main())
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one error line; there must be exactly one, and it must be the last thing said."""
        lines = self.err.splitlines()
        errors = [line for line in lines if line.startswith(ERROR)]
        assert len(errors) == 1, f"expected one error line, got:\n{self.err}"
        assert lines[-1] == errors[0], f"expected the error line last, got:\n{self.err}"
        return errors[0].removeprefix(ERROR)

    @property
    def only_error(self) -> str:
        """The error line when nothing else was said at all: no traceback, no progress, no result."""
        assert self.err.count("\n") == 1, f"expected one line, got:\n{self.err}"
        assert not self.out, f"expected nothing on stdout, got:\n{self.out}"
        return self.error


def run(*arguments: str | Path, cwd: Path, has_report: bool = False) -> Outcome:
    """One command, to its end, in this process. A report takes longer than most of these runs."""
    out, err = io.StringIO(), io.StringIO()
    report = contextlib.nullcontext() if has_report else mock.patch("headrace.views.report.write_report")
    with report, _inside(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # tyro's way to refuse an argument
            code = stop.code if isinstance(stop.code, int) else 1
    return Outcome(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _inside(cwd: Path) -> Iterator[None]:
    """The working directory of a command; modules that it imported from there are forgotten afterwards."""
    path, modules = list(sys.path), set(sys.modules)
    with contextlib.chdir(cwd):
        try:
            yield
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                file = getattr(sys.modules[name], "__file__", None)
                if file is not None and Path(file).is_relative_to(cwd):
                    del sys.modules[name]


def start(*arguments: str | Path, cwd: Path, has_report: bool = True, **environment: str) -> subprocess.Popen[str]:
    """One command as a process of its own. Its report takes some seconds, most of them for importing matplotlib."""
    program = ("-m", "headrace") if has_report else ("-c", WITHOUT_REPORT)
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": PATHS, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], timeout_s: float = 200.0) -> Outcome:
    """Wait for a command that was started; it is killed if it does not end."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"did not end within {timeout_s} s:\n{out}\n{err}") from None
    return Outcome(process.returncode, out, err)


def result_of(run_dir: Path) -> dict[str, Any]:
    """A run's result.json."""
    result: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    return result


def assert_says(text: str, said: list[str]) -> None:
    """All of these words are in the text."""
    for words in said:
        assert words in text


def files_in(folder: Path) -> set[str]:
    """Everything below a folder, by relative path."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
