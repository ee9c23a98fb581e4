"""hr.Collector: completed rollouts for a learner of your own. A source with completion; no learner, no optimiser.

for batch in rollouts: your update of a module -> rollouts.publish(module) -> the next rollout acts with it
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headrace.api.arguments import (
    copied,
    drawn_seed,
    env_spec,
    extractors_given,
    number_of,
    own_module,
    place,
    policy_config,
    require_options,
)
from headrace.api.loan import end_loan
from headrace.api.whereabouts import whereabouts
from headrace.build import Parts, build_parts
from headrace.collecting.source import Harvest
from headrace.envs.instances import Instance
from headrace.envs.spec import EnvSource, EnvSpec, Wrapper
from headrace.errors import UsageError
from headrace.keywords import in_words
from headrace.learning.assembly import complete
from headrace.learning.batch import Batch
from headrace.learning.fast_path import Evaluators
from headrace.plain_text import message_of
from headrace.policies.policy import Module
from headrace.policies.threads import torch_threads
from headrace.run_config import RunConfig
from headrace.weights.saving import require_weights

logger = logging.getLogger(__name__)


@in_words()
class Collector:
    """Rollouts for a learner of your own: iterate for batches, publish new weights, close at the end.

    The batch is lent: it is valid until the next one is asked for, `batch.copy()` for longer. Every field of it is
    complete, log-probabilities, values and bootstrap values included.
    """

    def __init__(
        self,
        env: EnvSource | EnvSpec | Instance,
        policy: str | Module = "MlpPolicy",
        n_envs: int | None = None,
        n_steps: int = 128,
        seed: int | None = None,
        *,
        policy_kwargs: Mapping[str, Any] | None = None,
        action_masks: bool = False,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Wrapper] = (),
        action_repeat: int = 1,
        topology: str = "auto",
        workers: int | str = "auto",
        inference: str = "local",
        inference_device: str | Sequence[str] = "cpu",
        double_buffering: str = "auto",
        inference_servers: int = 1,
        inference_max_batch: int = 0,
        inference_max_wait_ms: float = 1.0,
        max_lag: int = 0,
        shards: int = 0,
        start_method: str = "forkserver",
        spares: int = 1,
        pick_up_rows: int = -1,
        nan_policy: str = "raise",
        out_of_bounds: str = "warn",
        hang_floor_s: float = 30.0,
        hang_ceiling_s: float = 300.0,
        worker_max_memory_mb: int = 0,
        worker_max_episodes: int = 0,
        env_retries: int = 100,
        **unknown: Any,
    ) -> None:
        require_options("Collector", unknown, [name for name in locals() if name not in ("self", "unknown")])
        module = own_module(policy)
        config = RunConfig(
            env=env_spec(env, env_kwargs, wrappers, action_repeat),
            seed=drawn_seed(seed),
            policy=policy_config(policy, policy_kwargs, {"action_masks": action_masks}),
            extractors=extractors_given(policy_kwargs),
            topology=place(
                n_envs=number_of(env) if n_envs is None else n_envs, n_steps=n_steps,
                topology=topology, workers=workers, inference=inference,
                max_lag=max_lag, shards=shards, start_method=start_method, spares=spares, pick_up_rows=pick_up_rows,
                nan_policy=nan_policy, out_of_bounds=out_of_bounds,
                hang_floor_s=hang_floor_s, hang_ceiling_s=hang_ceiling_s,
                worker_max_memory_mb=worker_max_memory_mb, worker_max_episodes=worker_max_episodes,
                env_retries=env_retries, inference_device=inference_device, double_buffering=double_buffering,
                inference_servers=inference_servers,
                inference_max_batch=inference_max_batch, inference_max_wait_ms=inference_max_wait_ms,
            ),
        )  # fmt: skip
        with whereabouts.kept():
            self._parts = build_parts(config, copied(module), is_learning=False)
        self._evaluators = Evaluators()
        self._lent: Batch | None = None  # in the caller's hands
        self._is_torn = False  # a rollout was broken off: the environments are ahead of the journal
        self._is_published = True
        self._is_closed = False
        self.harvest: Harvest | None = None
        """What became of the last batch: its record and the episodes that ended in it, as a run would report them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as second:
            if error is None:
                raise
            logger.warning("not all could be closed: %s", message_of(second))  # and the error goes on its way

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._require_open()
        given_back = self._give_back()
        if given_back is not None:
            end_loan(given_back)
        if not self._is_published:  # nothing new: the same weights are the next version
            self._parts.weights.publish()
        if self._is_torn:
            raise UsageError("the last rollout was broken off in the middle; make another collector")
        self._is_torn = True
        with whereabouts.kept():
            batch: Batch = self._parts.reader.collect()
        self._is_published = self._is_torn = False
        self._lent, batch.valid = batch, batch.valid.copy()  # which may be the slab's, by which steps are counted
        with torch_threads(1):
            complete(batch, lambda version: self._evaluators.of(self._parts.weights.acted(version)))
        return batch

    def publish(self, module: Module | Mapping[str, Any]) -> int:
        """Act with these weights (of a module, or its state_dict) from the next rollout on; returns their version."""
        self._require_open()
        passed: Any = module
        is_class = isinstance(passed, type)
        given = passed if is_class or isinstance(passed, Mapping) else getattr(passed, "state_dict", lambda: None)()
        if not isinstance(given, Mapping):
            got = f"the class {passed.__name__}" if is_class else type(passed).__name__
            raise UsageError(f"publish: expected a torch.nn.Module or its state_dict(), got {got}")
        require_weights(given, self._parts.module)
        self._parts.module.load_state_dict(given)
        self._is_published = True
        return self._parts.weights.publish()

    def close(self) -> None:
        """Close the environments; the last batch counts as consumed."""
        try:
            self._give_back()
        finally:
            self._is_closed = True
            self._parts.close()

    @property
    def parts(self) -> Parts:
        """What it is made of; evaluate_policy reads it."""
        return self._parts

    @property
    def policy(self) -> Module:
        """The policy as it was last published; train a copy of it and publish that."""
        return self._parts.module

    @property
    def ledger(self) -> dict[str, Any]:
        """Where every step went; the batch in hand is produced, and not yet consumed."""
        return self._parts.reader.ledger.encode()

    def _require_open(self) -> None:
        if self._is_closed:
            raise UsageError("this collector was closed; make another one")

    def _give_back(self) -> Batch | None:
        batch, self._lent = self._lent, None
        if batch is not None:
            self.harvest = self._parts.reader.give_back()
        return batch
