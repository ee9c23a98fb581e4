"""One episode as a machine without hands: observations and completions in, requests and actions out.

    begin(observation) -> Request · answered(completion) -> actions · stepped(steps) -> Request, or None: it is over
    failed(failure) · record()

Pure: no clock, no engine, no environment, no randomness but the seeds it is given. Whoever drives it (a lock-step
loop, an event loop in a worker) gets the same record from the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.agents.answers import Answer, parse
from headrace.agents.codec import Codec
from headrace.agents.conversation import Conversation, Span
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.environments.text_env import Step
from headrace.agents.failures import EpisodeError
from headrace.agents.records import COMPLETED, FAILED, PARSE, TRUNCATED, Episode, Failure, Turn
from headrace.errors import UsageError, require_types


@dataclass(frozen=True)
class Rules:
    """The limits of an episode, and the format of answers."""

    max_turn: int = 5
    """Exchanges at most."""
    max_actions_per_turn: int = 2
    """Actions taken from one answer at most."""
    max_actions_per_traj: int = 10
    """Actions of an episode at most."""
    max_tokens: int = 128
    """Tokens of one answer at most."""
    max_context: int = 4096
    """Tokens of a row at most; an episode that would need more is truncated."""
    enable_think: bool = True
    """Answers are <think>..</think><answer>..</answer>; else <answer>..</answer>."""
    action_sep: str = "||"
    """Between the actions of one answer."""
    format_penalty: float = -0.1
    """Added to the reward of a turn whose answer is invalid; the environment does not move."""
    temperature: float = 1.0
    """Of sampling."""
    system: str = ""
    """A system message before the first question; none if empty."""

    def __post_init__(self) -> None:
        whole = ("max_turn", "max_actions_per_turn", "max_actions_per_traj", "max_tokens", "max_context")
        require_types(self, {int: whole, float: ("format_penalty", "temperature"), str: ("action_sep", "system")})
        for name in whole:
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not isinstance(self.enable_think, bool):
            raise UsageError(f"enable_think: expected true or false, got {self.enable_think!r}")
        if not self.action_sep.strip():
            raise UsageError("action_sep: expected some text between actions, got none")
        if self.temperature < 0:
            raise UsageError(f"temperature: expected 0 or more, got {self.temperature}")


@dataclass(frozen=True)
class EpisodeId:
    """Who an episode is, and the seeds that are its own: of the reset, and of each turn's sampling."""

    group: int
    member: int
    tag: str
    seed: int


class Play:
    """One attempt at one episode."""

    def __init__(
        self,
        who: EpisodeId,
        rules: Rules,
        codec: Codec,
        sampling_seed: Callable[[int], int],
        instructions: str,
        known_actions: Sequence[str] | None,
        is_text_only: bool = False,
        attempt: int = 1,
    ) -> None:
        self._who, self._rules, self._attempt = who, rules, attempt
        self._sampling_seed = sampling_seed
        self._instructions, self._known = instructions, known_actions
        system = [{"role": "system", "content": rules.system}] if rules.system else []
        self._conversation = Conversation(codec, is_text_only, system)
        self._is_text_only = is_text_only
        self._turns: list[Turn] = []
        self._facts: list[dict[str, float]] = []  # of each action
        self._num_actions = 0
        self._status = ""
        self._failure: Failure | None = None
        self._prompt = ""
        self._answer = Answer(())
        self._span = Span(0, 0, 0)
        self._text = ""
        self._engine_s = 0.0

    def begin(self, observation: str) -> Request | None:
        """The first question."""
        return self._ask(f"{self._instructions}\n\n{observation}")

    def answered(self, completion: Completion, engine_s: float = 0.0) -> tuple[str, ...]:
        """The actions to take now; none if the answer was invalid."""
        rules = self._rules
        try:
            self._span = self._conversation.answer(completion)
            left = rules.max_actions_per_traj - self._num_actions
            most = min(rules.max_actions_per_turn, left)
            self._answer = parse(completion.text, rules.enable_think, rules.action_sep, most, self._known)
        except Exception as error:
            raise EpisodeError(PARSE, f"{type(error).__name__}: {error}") from error
        self._text, self._engine_s = completion.text, engine_s
        return self._answer.actions

    def stepped(self, steps: Sequence[Step], env_s: float = 0.0) -> Request | None:
        """What the actions did, as many as were taken; the next question, or None: the episode is over."""
        rules, answer = self._rules, self._answer
        reward = sum(step.reward for step in steps) + (0.0 if answer.is_valid else rules.format_penalty)
        taken = answer.actions[: len(steps)]
        self._turns.append(
            Turn(
                self._prompt, self._text, taken, answer.is_valid, float(reward), self._span.row, self._span.start,
                self._span.stop, self._engine_s, env_s,
            )
        )  # fmt: skip
        self._num_actions += len(taken)
        self._facts += [dict(step.facts) for step in steps]
        if steps and steps[-1].is_done:
            self._status = COMPLETED
            return None
        if len(self._turns) >= rules.max_turn or self._num_actions >= rules.max_actions_per_traj:
            self._status = TRUNCATED
            return None
        if not answer.is_valid:
            return self._ask(f"Your answer was not used: {answer.complaint}. Nothing has changed.")
        return self._ask(f"Reward: {float(reward):g}\n\n{steps[-1].observation}")

    def failed(self, failure: Failure) -> None:
        """It ends here, without a result."""
        self._status, self._failure = FAILED, failure

    def record(self) -> Episode:
        """What happened."""
        who = self._who
        return Episode(
            who.group, who.member, who.tag, who.seed, self._status, self._conversation.rows, tuple(self._turns),
            self._metrics(), self._failure, self._attempt, not self._is_text_only, self._rules.system,
        )  # fmt: skip

    def _ask(self, text: str) -> Request | None:
        rules, turn = self._rules, len(self._turns)
        self._prompt = f"{text}\n\n{self._format(turn)}"
        try:
            ids = self._conversation.ask(self._prompt)
        except Exception as error:
            raise EpisodeError(PARSE, f"the chat template failed: {type(error).__name__}: {error}") from error
        if len(ids) + rules.max_tokens > rules.max_context:
            self._status = TRUNCATED
            return None
        messages = tuple(self._conversation.messages) if self._is_text_only else ()
        who = self._who
        return Request(
            who.group, who.member, turn, ids, rules.max_tokens, self._sampling_seed(turn), rules.temperature, messages
        )

    def _format(self, turn: int) -> str:
        """What to answer, and what is left."""
        rules = self._rules
        left = rules.max_actions_per_traj - self._num_actions
        most = min(left, rules.max_actions_per_turn)
        one = "<answer>action</answer>" if most == 1 else f"<answer>action {rules.action_sep} action</answer>"
        wanted = f"<think>your thoughts</think>{one}" if rules.enable_think else one
        listed = f"Actions: {', '.join(self._known)}\n" if self._known else ""
        return (
            f"{listed}Turn {turn + 1} of {rules.max_turn}, {left} actions left, at most {most} in one answer.\n"
            f"Answer as {wanted}"
        )

    def _metrics(self) -> dict[str, float]:
        """Sums and shares over the episode; an environment's own facts as the mean over its actions."""
        turns = self._turns
        metrics = {
            "success": float(bool(self._facts and self._facts[-1].get("success", 0.0))),
            "reward": float(sum(turn.reward for turn in turns)),
            "num_turns": float(len(turns)),
            "num_actions": float(self._num_actions),
            "answer_is_valid": sum(turn.is_valid for turn in turns) / len(turns) if turns else 0.0,
        }
        names = {name for facts in self._facts for name in facts} - {"success"}
        for name in sorted(names):
            metrics[name] = sum(float(facts.get(name, 0.0)) for facts in self._facts) / len(self._facts)
        return metrics
