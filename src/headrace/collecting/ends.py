"""How worker processes ended, in words: what is known of an end, and the errors for those that can't be mended.

    End --pool_is_lost, given_up--> the error that ends a run, with the worker's last Python stack

Runs when a worker was lost, never per update. Does not know whether one is replaced: that is the supervisor's.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import EnvRaised, HeadraceError


@dataclass(frozen=True)
class End:
    """How a worker ended, as far as it is known: in words, where in its work, and its last Python stack."""

    how: str
    place: tuple[int, int, int] | None
    stack: str
    is_hung: bool = False
    raised: EnvRaised | None = None  # what an environment raised
    since_s: float = 0.0  # when it reported that, by the watch's clock


def raised_end(failure: EnvRaised, since_s: float) -> End:
    """Of a worker whose environment raised."""
    env, episode, _ = failure.place or (0, 0, 0)
    how = f"env {env}: {failure}" if episode < 0 else str(failure)  # which could not be made: it has no episode
    traceback = "\n".join(failure.__notes__).partition("\n")[2]  # without the line that says whose it is
    return End(how, failure.place, traceback, raised=failure, since_s=since_s)


def pool_is_lost(what: str, worker: int, end: End) -> HeadraceError:
    """Of a worker whose environments reset themselves."""
    return _with_stack(worker, end.stack, HeadraceError(
        f"{what}; its environments are a pool that resets itself "
        f"(class B): episodes can't be replayed. Its last checkpoint holds the weights: "
        f"PPO.load(RUN, weights_only=True) in Python trains on from them"
    ))  # fmt: skip


def given_up(why: str, worker: int, environments: str, end: End) -> HeadraceError:
    """Of a worker that ended too often."""
    if end.raised is not None:
        error = EnvRaised(end.how, end.place)
        error.add_note(
            f"In headrace-worker-{worker}:\n{end.stack}\n"
            f"{why.removesuffix(f', last: {end.how}')} ({environments}), "
            f"each time in a fresh process. env_retries=0 ends a run at the first"
        )
        return error
    slow = "raise hang_floor_s and hang_ceiling_s if the environment is only slow, " if end.is_hung else ""
    return _with_stack(worker, end.stack, HeadraceError(
        f"{why} ({environments}); {slow}look at the environment's own log or run with topology=inline"
    ))  # fmt: skip


def _with_stack(worker: int, stack: str, error: HeadraceError) -> HeadraceError:
    if stack:
        error.add_note(f"In headrace-worker-{worker}:\n{stack}")
    return error
