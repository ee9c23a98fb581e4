"""`headrace check ENV`: what headrace can guarantee for an environment."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from headrace.cli.options import env_kwargs, parse, translate
from headrace.cli.printing import passing, warn
from headrace.errors import EnvError
from headrace.presets import preset

if TYPE_CHECKING:
    from headrace.envs.spec import EnvSpec
    from headrace.runtime.line import Line

_SAID, _ANSWER, _FAILED = b"S", b"A", b"F"
_END_S = 3.0  # for a check that has answered to end by itself


@dataclass(frozen=True)
class CheckOptions:
    """Play a few episodes and find out an environment's spaces, class (A, B, C), step cost and guarantees."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """A Gymnasium id, envpool:ID, or module:attribute."""
    env_kwargs: str = "{}"
    """Keyword arguments of the environment, as JSON."""
    wrappers: tuple[str, ...] = ()
    """Wrappers as module:attribute, the last one outermost; a wrapper's arguments follow it as JSON, in quotes."""
    preset: str = ""
    """atari: with Gymnasium's wrappers for Atari, as headrace train has them."""
    action_repeat: int = 1
    """Send every action this many times."""
    action_masks: bool = False
    """Send no action that the environment forbids, as headrace train --action-masks does."""
    seed: int = 1
    """Root of the check's random numbers."""
    hang_ceiling_s: float = 300.0
    """An environment that shows no progress for so long is an error that says what it is in; 0: no limit."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(CheckOptions, translate(argv), "check")
    kwargs = env_kwargs(options.env_kwargs)
    from headrace.cli.own_modules import find_own_modules
    from headrace.envs.spec import EnvSpec
    from headrace.runtime.child import Child
    from headrace.runtime.death import how_it_ended
    from headrace.runtime.failures import failure_of

    chosen = preset(options.preset)
    wrappers = options.wrappers or chosen.wrappers
    spec = EnvSpec(options.env, chosen.env_kwargs | kwargs, wrappers, options.action_repeat)
    find_own_modules(spec.encode())
    passing(f"looking at {spec.name} ...")
    child, patience_s, has_answer = Child.spawn("headrace-check"), 0.0, False
    try:
        child.assign(_check, (spec, options.seed, options.hang_ceiling_s, options.action_masks))
        while (data := child.line.receive()) is not None:
            passing(f"{data[1:].decode()} ..." if data.startswith(_SAID) else "")
            if data.startswith(_FAILED):
                raise failure_of("the check", data[1:], with_ours=False)
            if data.startswith(_ANSWER):
                has_answer = True
                print(data[1:].decode(), flush=True)
                break  # not until the line ends: threads of the environment may outlive the answer
        patience_s = _END_S
    finally:
        passing("")
        code = child.end(patience_s)
    if has_answer and code == -signal.SIGKILL:
        why = "a thread, or a handler of atexit?"
        warn(f"{spec.name}: its process had not ended {_END_S:g} s after the answer and was killed ({why})")
    if not has_answer and code != 1:  # 1: it has said what it hung in
        raise EnvError(f"{spec.name}: the process that played it died: {how_it_ended(code)}")
    return 0 if has_answer else 1


def _check(line: Line, asked: tuple[EnvSpec, int, float, bool]) -> None:
    """In a process of its own: what the environments have spawned goes with it, however the command ends."""
    from headrace.evaluation.check import check_env
    from headrace.runtime.failures import report

    spec, seed, hang_ceiling_s, has_masks = asked
    try:
        found = check_env(
            spec,
            seed,
            progress=lambda text: line.send(_SAID + text.encode()),
            hang_ceiling_s=hang_ceiling_s,
            action_masks=has_masks,
        )
        line.send(_ANSWER + found.text().encode())
    except BaseException as error:
        line.send(_FAILED + report(error))
