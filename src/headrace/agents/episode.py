"""One episode as a machine without hands: observations and completions in, requests and actions out.

    Play: begin(observation) -> Request · answered(completion) -> actions · stepped(steps) -> Request, or None: over
          failed(failure) · record()
    Conversation: what was asked and sampled, in token space, append only      parse: an answer's text -> actions

The chat template must only append. That is checked at every turn: the new text has to begin with the old one and the
answer in it, its stop token included. Where a template rewrites what was said (drops earlier thoughts, trims blanks,
ends turns with another token), a new row is forked from the rewritten text, and the old row keeps what was sampled.

Pure: no clock, no engine, no environment, no randomness but the seeds it is given. A lock-step loop and an event loop
in a worker drive the same machine, and get the same record from the same answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.agents.chat_template import Message
from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.environments.text_env import Step, TextForm
from headrace.agents.plan import Rules, Ticket
from headrace.agents.records import (
    COMPLETED,
    FAILED,
    PARSE,
    TRUNCATED,
    Episode,
    EpisodeError,
    Failure,
    GrowingRow,
    TokenRow,
    Turn,
)
from headrace.agents.tool_calls import Said, Toolbox, for_server

_THINKS, _ANSWERS, _GOES_ON = (re.compile(one) for one in (r"\s*<think>", r"\s*<answer>", r"</think>\s*<answer>"))


class Play:
    """One attempt at one episode."""

    def __init__(
        self,
        ticket: Ticket,
        member: int,
        rules: Rules,
        codec: Codec,
        sampling_seed: Callable[[int], int],
        instructions: str,
        known_actions: Sequence[str] | None,
        is_text_only: bool = False,
        attempt: int = 1,
        form: TextForm | None = None,
        tools: Toolbox | None = None,
    ) -> None:
        self._ticket, self._member, self._rules, self._attempt = ticket, member, rules, attempt
        self._sampling_seed = sampling_seed
        self._instructions, self._known, self._form = instructions, known_actions, form
        system = [{"role": "system", "content": rules.system}] if rules.system else []
        self._tools, self._said = tools, Said("")
        self._conversation = Conversation(codec, is_text_only, system, () if tools is None else tools.schemas)
        self._told: list[Message] = []
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
            left = rules.max_actions_per_traj - self._num_actions
            most = min(rules.max_actions_per_turn, left)
            is_open = self._conversation.has_open_thought
            if self._tools is None:
                self._span = self._conversation.answer(completion)
                text = _with_thought(completion, is_open, rules.enable_think)
                self._answer = parse(text, rules.enable_think, rules.action_sep, most, self._known, self._form)
            else:
                self._said = self._tools.read(completion, is_open, len(self._turns))
                self._span = self._conversation.answer(completion, self._said.messages())
                self._answer = Answer(tuple(one.action for one in self._said.calls[:most]), self._said.complaint)
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
                self._span.stop, self._engine_s, env_s, self._exchange(),
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
        if self._tools is not None:
            return self._answer_calls([f"Reward: {float(one.reward):g}\n\n{one.observation}" for one in steps])
        return self._ask(f"Reward: {float(reward):g}\n\n{steps[-1].observation}")

    def failed(self, failure: Failure) -> None:
        """It ends here, without a result."""
        self._status, self._failure = FAILED, failure

    def record(self) -> Episode:
        """What happened."""
        of = self._ticket
        return Episode(
            of.number, self._member, of.tag, of.seed, self._status, self._conversation.rows, tuple(self._turns),
            self._metrics(), self._failure, self._attempt, not self._is_text_only, self._rules.system,
        )  # fmt: skip

    def _answer_calls(self, texts: list[str]) -> Request | None:
        """What every call did, as a message of its own."""
        told = self._said.results(texts, self._format(len(self._turns)))
        return self._tell(told, "\n\n".join(one["content"] for one in told))

    def _exchange(self) -> str:
        return "" if self._tools is None else json.dumps([*self._told, self._said.messages()[0]])

    def _ask(self, text: str) -> Request | None:
        prompt = f"{text}\n\n{self._format(len(self._turns))}"
        return self._tell([{"role": "user", "content": prompt}], prompt)

    def _tell(self, told: list[Message], prompt: str) -> Request | None:
        rules, turn = self._rules, len(self._turns)
        self._told, self._prompt = told, prompt
        try:
            ids = self._conversation.tell(told)
        except Exception as error:
            raise EpisodeError(PARSE, f"the chat template failed: {type(error).__name__}: {error}") from error
        if len(ids) + rules.max_tokens > rules.max_context:
            self._status = TRUNCATED
            return None
        messages = tuple(map(for_server, self._conversation.messages)) if self._is_text_only else ()
        return Request(
            self._ticket.number, self._member, turn, ids, rules.max_tokens, self._sampling_seed(turn),
            rules.temperature, messages, self._conversation.tools if messages else (), rules.top_p, rules.top_k,
        )  # fmt: skip

    def _format(self, turn: int) -> str:
        """What to answer, and what is left."""
        rules = self._rules
        left = rules.max_actions_per_traj - self._num_actions
        most = min(left, rules.max_actions_per_turn)
        one = "<answer>action</answer>" if most == 1 else f"<answer>action {rules.action_sep} action</answer>"
        wanted = f"<think>your thoughts</think>{one}" if rules.enable_think else one
        listed = f"Actions: {', '.join(self._known)}\n" if self._known and self._tools is None else ""
        how = f"Answer as {wanted}" if self._tools is None else "Answer with a tool call."
        return f"{listed}Turn {turn + 1} of {rules.max_turn}, {left} actions left, at most {most} in one answer.\n{how}"

    def _metrics(self) -> dict[str, float]:
        """Sums and shares over the episode; an environment's own facts as the mean over its actions."""
        turns = self._turns
        metrics = {
            "success": float(bool(self._facts) and self._facts[-1].get("success", 0.0) > 0),
            "reward": float(sum(turn.reward for turn in turns)),
            "num_turns": float(len(turns)),
            "num_actions": float(self._num_actions),
            "answer_is_valid": sum(turn.is_valid for turn in turns) / len(turns) if turns else 0.0,
        }
        names = {name for facts in self._facts for name in facts} - metrics.keys()  # those are ours
        for name in sorted(names):
            metrics[name] = sum(float(facts.get(name, 0.0)) for facts in self._facts) / len(self._facts)
        return metrics


@dataclass(frozen=True)
class Span:
    """Where an answer's tokens lie."""

    row: int
    start: int
    stop: int


@dataclass
class Conversation:
    """Grows by questions and answers; `rows` may be read at any time."""

    codec: Codec
    is_text_only: bool = False
    messages: list[Message] = field(default_factory=list)
    tools: Sequence[Mapping[str, Any]] = ()
    _else: Sequence[Message] = ()  # what the last answer's message may be instead
    _rows: list[GrowingRow] = field(default_factory=list)
    _spelt: dict[int, str] = field(default_factory=dict)  # stop ids that were sampled

    def ask(self, text: str) -> list[int]:
        """Add what the environment says; returns the ids to go on from."""
        return self.tell([{"role": "user", "content": text}])

    def tell(self, messages: Sequence[Message]) -> list[int]:
        """The same for messages of any role."""
        said = len(self.messages) - 1
        self.messages += messages
        if self.is_text_only:
            return []
        full = self._rendered(self.messages)
        row = self._rows[-1] if self._rows else None
        for other in self._else:
            if row is not None and not full.startswith(row.text):
                instead = [*self.messages[:said], other, *messages]
                if (text := self._rendered(instead)).startswith(row.text):
                    self.messages, full = instead, text
        if row is not None and full.startswith(row.text):
            row.read(self._added(row, full[len(row.text) :]))
            row.text = full
        else:
            self._rows.append(GrowingRow.of_prompt(self.codec.encode(full), full))
        return list(self._rows[-1].ids)

    def _added(self, row: GrowingRow, text: str) -> list[int]:
        """Ids of what follows: some tokenizers put a blank before what begins a text, or take those after a stop."""
        before = row.ids[-1:]
        with_it = self.codec.encode(self._ending(before) + text)
        return with_it[1:] if with_it[:1] == before and self._ending(before) else self.codec.encode(text)

    @property
    def has_open_thought(self) -> bool:
        """Whether the head of the answer has begun a thought: then the answer goes on with it."""
        return bool(self._rows) and self._rows[-1].text.rstrip().endswith("<think>")

    def _rendered(self, messages: list[Message]) -> str:
        if not self.tools:
            return self.codec.render(messages, is_asking=True)
        text = self.codec.render(messages, True, self.tools)
        if not self._rows and text == self.codec.render(messages, is_asking=True):
            raise ValueError("it has no place for tools: use another template, or answers = tags")
        return text

    def answer(self, completion: Completion, messages: Sequence[Message] = ()) -> Span:
        """Add what the policy sampled; as this message, or another if only that is what the template writes."""
        said = messages or ({"role": "assistant", "content": completion.text},)
        self.messages.append(said[0])
        self._else = said[1:]
        if self.is_text_only:
            return Span(0, 0, 0)
        row = self._rows[-1]
        start = len(row.ids)
        row.sample(completion.ids, completion.log_probs, completion.versions)
        row.text += completion.text + self._ending(completion.ids)
        return Span(len(self._rows) - 1, start, len(row.ids))

    def _ending(self, ids: Sequence[int]) -> str:
        """How the stop id that ends an answer is spelt; nothing if it was cut short."""
        if not ids or ids[-1] not in self.codec.stop_ids:
            return ""
        if ids[-1] not in self._spelt:
            self._spelt[ids[-1]] = self.codec.decode(ids[-1:])
        return self._spelt[ids[-1]]

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """As arrays."""
        return tuple(row.as_arrays() for row in self._rows)


def _with_thought(completion: Completion, is_open: bool, is_wanted: bool) -> str:
    """An answer with the thought that a server took out of it, or whose beginning is in the prompt."""
    if completion.reasoning:
        return f"<think>{completion.reasoning}</think>{completion.text}" if is_wanted else completion.text
    return f"<think>{completion.text}" if is_open else completion.text


@dataclass(frozen=True)
class Answer:
    """Actions to take, or what was wrong."""

    actions: tuple[str, ...]
    complaint: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether the environment may move."""
        return not self.complaint


def answered(text: str, has_thinking: bool) -> str | None:
    """What lies between <answer> and </answer>, if that is all there is; in one pass, for models that repeat tags."""
    start = (_THINKS if has_thinking else _ANSWERS).match(text)
    if start is not None and has_thinking:
        start = _GOES_ON.search(text, start.end())
    inside = text.rstrip().removesuffix("</answer>")
    if start is None or len(inside) < start.end() or len(inside) == len(text.rstrip()):
        return None
    return inside[start.end() :]


def parse(
    text: str,
    has_thinking: bool,
    separator: str,
    most_actions: int,
    known: Sequence[str] | None = None,
    form: TextForm | None = None,
) -> Answer:
    """The actions of one answer, at most so many; names in the environment's own spelling where it has a list."""
    found = answered(text, has_thinking)
    if found is None:
        wanted = "<think>...</think><answer>...</answer>" if has_thinking else "<answer>...</answer>"
        return Answer((), f"expected {wanted} and nothing else")
    words = [word.strip() for word in found.split(separator)]
    actions = [word for word in words if word][:most_actions]
    if not actions:
        return Answer((), "the answer holds no action")
    if form is not None:
        unread = [f"{action!r} is no action: {why}" for action in actions if (why := form.complaint(action))]
        return Answer((), unread[0]) if unread else Answer(tuple(actions))
    if known is None:
        return Answer(tuple(actions))
    spelling = {name.lower(): name for name in known} | {name: name for name in known}  # y and Y may be two actions
    meant = [spelling.get(action) or spelling.get(action.lower(), "") for action in actions]
    if "" in meant:
        return Answer((), f"unknown action {actions[meant.index('')]!r}, expected one of {', '.join(known)}")
    return Answer(tuple(meant))
