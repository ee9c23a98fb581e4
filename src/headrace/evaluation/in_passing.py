"""A check in passing: while a run trains, a few of its own episodes are played once more, in a fresh process.

    FirstEpisodes of environment 0 ──> a child of low priority: each alone, in an instance of its own, the last first
        every step the same?  ── yes ──> "same"      no ──> "differs", with one warning that names the first difference

`headrace check` finds more, before a run; this finds in the run itself what nobody has checked. It costs one process
for some seconds and never waits: a thread hands the episodes over and takes the answer, `look` only asks for it.
What can't be played again at all (it raises there, it can't be sent) is no difference. Ends with the session.
Does not know updates, views or files.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from headrace.clock import now_s
from headrace.envs.actions import sender
from headrace.envs.adapters.gymnasium_spaces import describe_action, describe_observation
from headrace.envs.replaying import Replay
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import EnvFailure
from headrace.episodes.first_episodes import FirstEpisodes, ShownEpisode
from headrace.plain_text import message_of
from headrace.runtime.child import Child
from headrace.runtime.line import Line

logger = logging.getLogger(__name__)

AFTER_S = 5.0  # of training: a run of seconds is not worth a process
_MOST_S = 600.0  # for the child
_NICE = 10  # about a tenth of what the run itself gets of a busy core; alone on a core it does not matter


class InPassing:
    """The check of one model; it may take more than one session."""

    def __init__(self, spec: EnvSpec, seed_of: Callable[[int, int], int], count: int, why_off: str = "") -> None:
        self._spec, self._seed_of, self._why_off = spec, seed_of, why_off
        self.episodes = None if why_off or not count else FirstEpisodes(count)
        self._begun_s = now_s()
        self._child: Child | None = None
        self._thread: threading.Thread | None = None
        self._answer: dict[str, Any] | None = None
        self._is_halted = False
        self._verdict: dict[str, Any] | None = None

    @classmethod
    def of(cls, spec: EnvSpec, seed_of: Callable[[int, int], int], count: int, nan_policy: str) -> Self:
        """The check of a run's environment, unless its episodes can't be played again as they were stored."""
        why_off = "" if nan_policy == "raise" else f"nan_policy={nan_policy}: episodes are stored as mended"
        why_off = "a pool that resets itself (class B)" if spec.is_vector() else why_off
        return cls(spec, seed_of, count, why_off)

    def state(self) -> dict[str, Any]:
        """For result.json: state is same, differs, not possible, not finished or off; how many episodes; in words."""
        if self._verdict is not None:
            return self._verdict
        if self.episodes is None:
            return {"state": "off", "episodes": 0, "detail": self._why_off or "check_episodes=0"}
        return {"state": "not finished", "episodes": 0, "detail": "the session ended before it"}

    def look(self) -> str | None:
        """Begin if it is time; says what was found, once, if that is bad. Never waits."""
        if self._verdict is not None or self.episodes is None:
            return None
        if self._thread is None:
            if self.episodes.is_full and now_s() - self._begun_s >= AFTER_S:
                self._begin(self.episodes.finished)
            return None
        if self._thread.is_alive():
            if now_s() - self._begun_s > _MOST_S:
                self._verdict = _verdict("not possible", 0, f"it took longer than {_MOST_S:g} s")
                self.close()
            return None
        answer = self._answer or {"failed": "the process that played them ended without an answer"}
        is_halted = self._is_halted and self._answer is None
        self.close()
        return None if is_halted else self._conclude(answer)

    def halt(self) -> None:
        """End the process now; a signal handler may call it."""
        child = self._child
        if child is not None:
            self._is_halted = True
            child.kill()

    def close(self) -> None:
        """End the process, whatever it is at; a later session may begin again."""
        child, thread, self._child, self._thread = self._child, self._thread, None, None
        if child is not None:
            child.kill()
            if thread is not None:
                thread.join()
            child.end(0.0)

    def _begin(self, episodes: Sequence[ShownEpisode]) -> None:
        self._begun_s = now_s()
        if not episodes:
            self._verdict = _verdict("not possible", 0, "the episodes of environment 0 are too long to be kept")
            return
        payload = self._spec, [(one, self._seed_of(0, one.episode)) for one in reversed(episodes)]
        try:
            self._child = child = Child.spawn("headrace-check")
        except OSError as error:
            self._verdict = _verdict("not possible", 0, f"no process could be started: {error}")
            return
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
        self._answer, self._is_halted = None, False
        self._thread = threading.Thread(target=self._converse, args=(child, payload), name="check", daemon=True)
        self._thread.start()

    def _converse(self, child: Child, payload: Any) -> None:
        """In a thread: a long payload is sent only as fast as it is read."""
        try:
            child.assign(play_all, payload)
            data = child.line.receive()
            self._answer = None if data is None else json.loads(data)
        except Exception as error:  # of a factory that can't be pickled: anything
            self._answer = {"failed": f"it can't be sent to another process: {message_of(error)}"}

    def _conclude(self, answer: dict[str, Any]) -> str | None:
        if "failed" in answer:
            self._verdict = _verdict("not possible", 0, answer["failed"])
            logger.info("the first episodes of env 0 were not checked: %s", answer["failed"])
            return None
        if answer["difference"] is None:
            self._verdict = _verdict("same", answer["played"], "played again in a fresh process, to the last bit")
            logger.info("%d episodes of env 0 are the same when played again in a fresh process", answer["played"])
            return None
        episode = answer["episode"]
        text = (
            f"env 0, episode 0:{episode}, seed {self._seed_of(0, episode)}: played again in a fresh process, it "
            f"differs in {answer['difference']}. The environment is not a function of its seed and actions (class C): "
            f"training goes on, but NOT guaranteed are the same bits for the same seed, resume, recovery of a lost "
            f"worker, and headrace replay. headrace check {self._spec.name} looks for the reason; check_episodes=0 "
            f"leaves this check out"
        )
        self._verdict = _verdict("differs", answer["played"], text)
        return text


def play_all(line: Line, payload: tuple[EnvSpec, list[tuple[ShownEpisode, int]]]) -> None:
    """The child's side: the episodes, until one differs."""
    spec, episodes = payload
    answer: dict[str, Any] = {"difference": None}
    for count, (one, seed) in enumerate(episodes):
        try:
            difference = difference_of(spec, one, seed)
        except BaseException as error:  # raised here and not in the run: it may need what there is one of
            answer = {"failed": f"episode 0:{one.episode} could not be played again: {message_of(error)}"}
            break
        answer |= {"played": count + 1, "episode": one.episode, "difference": difference}
        if difference is not None:
            break
    line.send(json.dumps(answer).encode())


def difference_of(spec: EnvSpec, shown: ShownEpisode, seed: int) -> str | None:
    """Play an episode again and name the first thing that is not as it was; None if all is."""
    env = spec.make()
    try:
        _act_on_one_thread()
        spaces = (
            describe_observation(env.observation_space, spec.name, env),
            describe_action(env.action_space, spec.name),
        )
        obs, _ = env.reset(seed=seed)
        _act_on_one_thread()
        replay = Replay(env.step, obs, spaces, (0, shown.episode))
        for step, actions in enumerate(zip(shown.actions, sender(spaces[1])(shown.actions.copy()), strict=True)):
            reward, *flags = replay.step(*actions)
            was = shown.rewards[step]
            if was.tobytes() != was.dtype.type(reward).tobytes():
                return f"the reward of step {step}: {was:g}, then {reward:g}"
            for name, before, now in zip(("terminated", "truncated"), shown.flags[step].tolist(), flags, strict=True):
                if before != now:
                    return f"{name} of step {step}: {before}, then {now}"
            if replay.checksum != int(shown.checksums[step]):
                seen = "the observation of the reset" if step == 0 else f"the observation after step {step - 1}"
                return f"{seen} or {step}" if shown.flags[step, 1] else seen
    except EnvFailure as failure:
        raise failure.__cause__ or failure from None
    finally:
        with suppress(Exception):
            env.close()
    return None


def _act_on_one_thread() -> None:
    """An environment that computes with torch does so on one thread in a run, and on others to other bits."""
    if "torch" in sys.modules:
        from headrace.policies.threads import torch_threads

        torch_threads(1).__enter__()


def _verdict(state: str, episodes: int, detail: str) -> dict[str, Any]:
    return {"state": state, "episodes": episodes, "detail": detail}
