"""`headrace COMMAND ...`: finds the command, runs it, turns errors into one clear message and an exit code.

    0 done · 1 failed · 2 usage · 3 the reward asked for was not reached · 130, 143, 129 after Ctrl-C, SIGTERM, SIGHUP

Imports nothing heavy, so that `headrace --help` answers at once.
"""

from __future__ import annotations

import difflib
import gc
import io
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import NoReturn

from headrace import __version__
from headrace.cli.ending import end_in_time, exit_code
from headrace.cli.printing import explain, flush, open_closed_streams, say, warn
from headrace.errors import HeadraceError
from headrace.last_words import watch_stderr
from headrace.runtime import guard
from headrace.runtime.leftovers import descendants, end_spawned

COMMANDS = {
    "train": "train a policy, with a live view, checkpoints and a report",
    "eval": "play episodes with a trained policy",
    "agents": "collect multi-turn rollouts of LLM agents in text environments",
    "replay": "execute a recorded episode again, list episodes, compare two runs",
    "rollouts": "write a run's recorded episodes as Parquet or as a Minari dataset",
    "check": "find out what headrace can guarantee for an environment",
    "export": "write a trained policy as an ONNX file",
    "plan": "how many actors feed a learner, what binds, what it costs",
    "sweep": "steps per second against the number of environments, and where it stops growing",
    "doctor": "what holds a run up and what would help; without a run: check this machine",
    "report": "draw the report of a run once more, from its files",
}
_NOT_BUILT = ("record", "bench", "watch")

_HELP = """usage: headrace COMMAND [options]

Collects rollouts from Gymnasium environments and trains policies on them.

commands:
{commands}

  headrace COMMAND --help    all options of a command
  headrace --version

examples:
  headrace train CartPole-v1 --n-envs 64 --n-steps 32 --total-timesteps 150000
  headrace train --resume runs/CartPole-v1__ppo__1__20260101-120000
  headrace eval runs/CartPole-v1__ppo__1__20260101-120000 --n-eval-episodes 100
  headrace replay runs/CartPole-v1__ppo__1__20260101-120000 3:17
  headrace check my_package.envs:MyEnv
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if argv is None:
        open_closed_streams()
    watch_stderr()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr has it: a name may hold what a terminal has not
    others: set[int] = set()
    if argv is None:  # the process is headrace's as a whole
        others = {*descendants(os.getpid())}
        guard.command.expect()
    code = 1
    try:
        code = flush(_run(sys.argv[1:] if argv is None else argv))
        return code
    except SystemExit as error:
        code = exit_code(error)
        raise
    except KeyboardInterrupt:  # one of many: it came while an earlier one was dealt with
        if argv is not None:
            raise
        code = 130
        return code
    finally:
        if argv is None:  # the process ends now
            _ignore_ctrl_c()
            if ended := end_spawned(others):
                warn(f"ended what environments had started and not closed: {', '.join(ended)}")
            guard.command.leave()
            end_in_time(code)
            gc.freeze()  # a last collection of all of torch would cost half a second


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP.format(commands="\n".join(f"  {name:<8} {what}" for name, what in COMMANDS.items())), end="")
        return 0 if arguments else 2
    if arguments[0] in ("--version", "-V"):
        print(f"headrace {__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        return _unknown(name)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        if before[number] is not signal.SIG_IGN:  # nohup
            signal.signal(number, _terminate)
    try:
        code: int = import_module(f"headrace.cli.{name}_command").main(arguments[1:])
        return code
    except HeadraceError as error:
        explain(error)
        return error.exit_code
    except KeyboardInterrupt:
        say("headrace: interrupted")
        return 130
    except BrokenPipeError:
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_ctrl_c() -> None:
    """What is left takes seconds, and can't be broken off; one that comes at this very moment is another of many."""
    while signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        with suppress(KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Before and after training, which has its own way to stop: environments are closed, then the process ends."""
    raise SystemExit(128 + number)


def _unknown(name: str) -> int:
    if name in _NOT_BUILT:
        print(f"headrace: error: command {name} is not built yet; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(COMMANDS)}"
    print(f"headrace: error: unknown command {name!r}: {hint}", file=sys.stderr)
    return 2
