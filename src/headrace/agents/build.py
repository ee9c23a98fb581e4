"""From a configuration to the parts: an engine, and rollouts over it. Teaches the tiny model, if that is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.agents.codec import ByteCodec, TokenizerCodec
from headrace.agents.config import AgentsConfig
from headrace.agents.engines.protocol import Completion, Engine
from headrace.agents.engines.scripted import random_answers, scripted
from headrace.agents.environments.text_env import Step, TextEnvSpec
from headrace.agents.episode import Play
from headrace.agents.plan import Rules, Ticket
from headrace.agents.rollouts import AgentRollouts
from headrace.errors import UsageError

logger = logging.getLogger(__name__)


def engine_of(config: AgentsConfig, on_step: Callable[[int, int], None] = lambda done, total: None) -> Engine:
    """The engine that a configuration asks for."""
    settings = config.engine
    if settings.kind == "scripted":
        return scripted(random_answers, settings.latency, settings.batching)
    if settings.kind == "openai":
        from headrace.agents.engines.openai import OpenAIEngine

        codec = TokenizerCodec.from_folder(Path(settings.tokenizer)) if settings.tokenizer else None
        return OpenAIEngine(codec, settings.server)
    return tiny_engine(config.envs, config.rules, config.seed, settings.steps, settings.slots, settings.parked, on_step)


def tiny_engine(
    envs: tuple[TextEnvSpec, ...],
    rules: Rules,
    seed: int,
    steps: int,
    slots: int = 32,
    parked: int = 96,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Engine:
    """A tiny model, taught on conversations of a random player with these environments."""
    try:
        from headrace.agents.engines.in_process import in_process
        from headrace.agents.engines.tiny import taught, tiny_codec, tiny_model
    except ImportError as error:
        raise UsageError(f"engine tiny: {error}; pip install 'headrace[llm]'") from error
    texts = [text for spec in envs for text in conversations(spec, rules, seed, 24)]
    codec = tiny_codec(texts)
    model = tiny_model(codec.vocabulary, seed)
    if steps:
        logger.info("teaching a model of %d parameters for %d steps", sum(p.numel() for p in model.parameters()), steps)
        taught(model, codec, texts, steps, seed, on_step=lambda step, loss: on_step(step + 1, steps))
    return in_process(model, codec, slots=slots, max_context=rules.max_context, parked=parked)


def conversations(spec: TextEnvSpec, rules: Rules, seed: int, count: int) -> list[str]:
    """A random player's episodes in the right format, as the template renders them: what answers should look like."""
    codec, texts = ByteCodec(), []
    roomy = replace(rules, max_context=1 << 20)
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        env = spec.build()
        try:
            observation = env.reset(int(rng.integers(2**31)))
            ticket = Ticket(number, spec.tag, 0, 1)
            play = Play(ticket, 0, roomy, codec, lambda turn: 0, env.instructions, env.actions)
            request, text = play.begin(observation), ""
            while request is not None:
                prompt = codec.decode(request.ids)
                answer = ""
                while "<answer>" not in answer:
                    answer = random_answers(prompt, rng)
                text = f"{prompt}{answer}<|im_end|>\n"
                ids = [*codec.encode(answer), codec.eos_id]
                actions = play.answered(Completion(ids, [0.0] * len(ids), [0] * len(ids), answer))
                steps: list[Step] = []
                for action in actions:
                    steps.append(env.step(action))
                    if steps[-1].is_done:
                        break
                request = play.stepped(steps)
        finally:
            with suppress(Exception):
                env.close()
        texts.append(text)
    return [text for text in texts if text]


def rollouts_of(config: AgentsConfig, engine: Engine, run_dir: Path | None = None, backend: str = "") -> AgentRollouts:
    """The rollouts that a configuration asks for."""
    return AgentRollouts(
        config.envs,
        engine,
        config.n_jobs,
        backend or config.backend,
        group_size=config.group_size,
        n_groups=config.n_groups,
        seed=config.seed,
        rules=config.rules,
        limits=config.limits,
        pooled=config.pooled,
        run_dir=run_dir,
    )
