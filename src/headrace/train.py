"""THE MAP: how experience becomes weights. Read this first.

    env.step ──> slab ──> ring ──> learner (completion, advantages, PPO) ──> weights ──> actors
                  ^                                                             │
                  └──────────────────── acts with version v ────────────────────┘

`Run` holds the parts of one run and `Run.update` is the whole loop, in the order the data moves. Wherever actors run,
the reader's side is the same: `collect` hands out leases, waits, takes what was committed, and enters in the books
what joins a batch.
Everything that makes a run what it is between two updates is in `Run.snapshot`; `Run.restore` goes on from it bit for
bit. Does not know files, views, command lines or signals: that is `session`.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from headrace.checkpoints.snapshot import Snapshot
from headrace.clock import now_ns, now_s
from headrace.envs.actions import sender
from headrace.envs.seeds import Purpose, leaf, sequence
from headrace.episodes.books import Books, Whereabouts
from headrace.episodes.statistics import Finished
from headrace.errors import CheckpointError, HeadraceError, SchemaError, UsageError
from headrace.inference.threads import torch_threads
from headrace.launch.actors import Actors, CrewPlan, Spent, Tell
from headrace.launch.auto import survey
from headrace.launch.crew import Crew, open_crew
from headrace.launch.hand import Hand, HandPlan
from headrace.launch.rehearsal import Rehearsal, rehearse
from headrace.launch.schedule import Schedule, SlabUse, slab_use
from headrace.launch.shard import ShardPlan, episode_seed
from headrace.launch.topology import publishing
from headrace.learning.batch import Batch, assemble, write_back
from headrace.learning.completion import complete
from headrace.learning.lag import is_too_old, lag, lease_limit, versions_kept
from headrace.learning.learner import Learner
from headrace.memory import spaces
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.ring import Taken
from headrace.memory.schema import explain_difference, rollout_schema
from headrace.memory.slab import Word
from headrace.policies.networks import as_policy, build_policy
from headrace.policies.policy import Evaluator, Module
from headrace.policies.tiles import default_tile
from headrace.run_config import RunConfig, encode
from headrace.telemetry.timing import Phases
from headrace.weights.flat import FlatParameters, tensors_sha256
from headrace.weights.store import Replica, WeightStore

PHASES = ("env", "inference", "copy", "completion", "advantages", "sgd", "wait")


class Run:
    """The parts of a run, connected. One thread reads and learns; close it when done."""

    def __init__(
        self,
        config: RunConfig,
        module: Module | None = None,
        schedule: Schedule | None = None,
        is_learning: bool = True,
    ) -> None:
        keep_freed_memory()
        self.config = config
        self._publish_updates, self._publish_s = publishing(config.topology.publish_every)
        n_envs, n_steps = config.topology.n_envs, config.ppo.n_steps

        def rehearsed(observation: spaces.Space, action: spaces.Space) -> Rehearsal:
            policy = module or build_policy(config.policy, observation, action, 0)
            return rehearse(policy, observation, action, n_envs, config.policy.tile, config.ppo, is_learning)

        shards_then = schedule.num_shards if schedule else None
        found = survey(config.env, config.seed, config.topology, rehearsed, shards_then)
        self.topology, self.observation_space, self.action_space = found.topology, found.observation, found.action
        shards = self.topology.shards
        self.module = module or build_policy(
            config.policy, self.observation_space, self.action_space, leaf(config.seed, Purpose.WEIGHTS)
        )
        noise, largest = as_policy(self.module).noise, as_policy(self.module).largest_tile
        self.tile = config.policy.tile or default_tile(n_envs, largest)
        self._plan = CrewPlan(
            tuple(ShardPlan(config.env, shard, config.seed) for shard in shards),
            tuple(rollout_schema(self.observation_space, self.action_space, n_steps, len(shard)) for shard in shards),
            noise,
            HandPlan(
                copy.deepcopy(self.module),
                self.observation_space,
                self.action_space,
                self.tile,
                self.topology.pick_up_rows,
            ),
        )
        self.flat = FlatParameters(self.module)
        replica = FlatParameters(copy.deepcopy(self.module))
        self._replica = Replica(replica)
        self.learner = Learner(self.flat, config.ppo, self._shuffling)
        self._policy = self.learner.evaluator(replica.module)
        self.books = Books(
            shards,
            self.observation_space,
            self.action_space,
            partial(episode_seed, config.seed),
            sender(self.action_space),
        )
        self._crew = self._open_crew(schedule)
        self.schedule = schedule
        self._waiting: list[deque[Taken]] = [deque() for _ in range(len(shards) if self.topology.is_even else 1)]
        self._published_s = now_s()
        self.phases = Phases(PHASES)
        self.updates = 0
        self.steps = 0
        self._batches = 0  # handed out and given back
        self._in_hand: list[Taken] = []  # of the batch that is being collected
        self._is_published = True  # the learner's weights are the latest version's
        self._is_launched = False
        self._failure: HeadraceError | None = None  # told by the next collect
        self._spent = Spent()
        self._restarts = 0  # of crews before this one
        self.is_collecting = False  # a signal may break off collecting, but not learning
        self.is_between_updates = True  # a snapshot is a valid checkpoint
        self.steps_of_last_update = 0
        self.tell: Tell = lambda text: None  # a line for people: who shows it says so here
        self.steps_by_worker = [0] * self.topology.workers  # of the last update
        self.version_of_last_update = 0  # the latest when its batch was complete
        self.last_schedule: list[SlabUse] = []  # what the last update looked at

    def update(self, total_timesteps: int) -> tuple[dict[str, float], list[Finished]]:
        """One update: collect a batch, learn from it, publish. Returns its record and the episodes that ended."""
        with torch_threads(1):
            taken = self.collect()
        self.is_between_updates = False
        slabs = [one.slab for one in taken]
        batch = assemble(slabs)
        version, is_present = self.weights.version, self._is_published
        ages = (now_ns() - np.array([slab.word(Word.STARTED_NS) for slab in slabs])) / 1e9

        with torch_threads(self.config.ppo.learner_threads):
            with self.phases.of("completion"):
                complete(batch, self.policy_of)
                write_back(batch, slabs)
            with self.phases.of("advantages"):
                targets = self.learner.targets(batch, version, is_present)
            with self.phases.of("sgd"):
                progress_remaining = max(0.0, 1.0 - self.steps / max(1, total_timesteps))
                trained = self.learner.update(batch, targets, self.updates, progress_remaining)

        finished = self.books.settle(taken)
        record = trained | self._collected(batch, version, float(ages.max()))
        self.steps_of_last_update, self.version_of_last_update = batch.steps, version
        self.steps_by_worker = [0] * self.topology.workers
        for one in taken:
            self.steps_by_worker[one.lease.shard % self.topology.workers] += int(one.slab.valid.sum())
        self.release(taken)  # the batch may be the slab's own memory, but nobody fills it before the next lease
        self.updates += 1
        self.steps += self.steps_of_last_update
        self._is_published = False
        if self._is_publishing():
            self.publish()
        self.books.ledger.check()
        self.is_between_updates = True
        try:
            self._lease()
        except HeadraceError as error:  # of an environment that runs ahead: this update is whole, the next one is told
            self._failure = error.with_traceback(None)  # which would hold on to this batch
        return record, finished

    def collect(self) -> list[Taken]:
        """As many slabs as there are shards: leased, filled, committed, taken, and entered in the books."""
        self.last_schedule = []
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._launch()
        self._take()
        self._lease()
        while len(self._in_hand) < self.topology.slabs_per_update:
            ready = self._ready()
            if ready is None:
                self._wait()
                self._take()
                self._lease()
            elif self._is_late(ready):
                self.books.reject(ready)
                self._crew.ring.reject(ready.lease)
                self._lease()
            else:
                self._in_hand.append(ready)
        batch, self._in_hand = self._in_hand, []
        for one in batch:  # only now: a collect that is broken off has entered nothing
            self.books.enter(one)
        spent = self._crew.actors.spent()
        if self.topology.topology == "inline":
            for name in ("env", "inference", "copy"):
                self.phases.add(name, getattr(spent, name))
        self._spent = spent
        return sorted(batch, key=lambda one: (one.lease.shard, one.lease.sequence))

    def release(self, taken: list[Taken]) -> None:
        """Hand the slabs of a batch back to the actors."""
        for one in taken:
            self._crew.ring.release(one.lease)
        self._batches += bool(taken)

    def publish(self) -> int:
        """The present weights as the next version."""
        self._published_s, self._is_published = now_s(), True
        return self.weights.publish(self.flat)

    def policy_of(self, version: int) -> Evaluator:
        """The policy with the weights of a version that is still kept; for reading, not for training."""
        self._replica.load(self.weights, version)
        return self._policy

    def rescale(self, workers: int) -> None:
        """Go on with another number of workers, between two updates; environments move by replay."""
        if self.topology.topology == "inline":
            raise UsageError("rescale: topology=inline has no workers")
        if not 1 <= workers <= len(self.topology.shards):
            raise UsageError(f"rescale: expected 1 to {len(self.topology.shards)} workers (shards), got {workers}")
        self.topology = replace(self.topology, workers=workers)
        self._reopen()

    def _reopen(self) -> None:
        """Fresh memory and fresh actors, which go on from the books; what waited for a batch is made again."""
        for queue in self._waiting:
            queue.clear()
        self._in_hand.clear()
        version = self.weights.version
        published = self.weights.vector(version).clone()
        self._restarts = self.restarts
        self._is_launched = False
        self._crew.close()
        self._crew = self._open_crew(self.schedule)
        self.weights.publish_vector(published, version)
        self._crew.ring.resume(self.books.ledger.sequences, self._batches)
        self._replica.forget()

    def snapshot(self) -> Snapshot:
        """Everything the next update depends on, copied: the run may go on. Call it between updates."""
        state, arrays = self.books.snapshot()
        if not self._is_published:  # actors go on with these
            arrays["published"] = self.weights.vector(self.weights.version).numpy().copy()
        return Snapshot(
            weights={name: tensor.clone() for name, tensor in self.module.state_dict().items()},
            optimizer={name: tensor.clone() for name, tensor in self.learner.optimizer_tensors().items()},
            episodes=arrays,
            state=state
            | {
                "config": encode(self.config),
                "observation_space": spaces.encode(self.observation_space),
                "action_space": spaces.encode(self.action_space),
                "updates": self.updates,
                "steps": self.steps,
                "version": self.weights.version,
                "minibatches_done": self.learner.minibatches_done,
                "batches": self._batches,
                "hashes": self.hashes(),
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot of a run with the same spaces, bit for bit, wherever actors run now."""
        state = snapshot.state
        self._require_same_schema(state)
        if self.schedule is not None and self.topology.max_lag:
            raise UsageError(
                "a replay can't be resumed: it needs versions that a checkpoint does not keep; begin it again"
            )
        if self._is_launched:
            self._reopen()
        self.load_weights(snapshot)
        self.learner.restore_optimizer(snapshot.optimizer, state["minibatches_done"])
        self._is_published = "published" not in snapshot.episodes
        if self._is_published:
            self.weights.publish(self.flat, state["version"])
        else:
            self.weights.publish_array(snapshot.episodes["published"], state["version"])
        self.updates, self.steps = state["updates"], state["steps"]
        self._batches = state["batches"]
        self.books.restore(state, snapshot.episodes)
        self._crew.ring.resume(self.books.ledger.sequences, self._batches)

    def load_weights(self, snapshot: Snapshot) -> None:
        """Take over a snapshot's parameters and nothing else; before the first collect: actors load a version once."""
        assert not self._is_launched, "actors have this version already and would not load it again"
        try:
            self.module.load_state_dict(snapshot.weights)
        except RuntimeError as error:
            raise CheckpointError(f"the checkpoint's parameters do not fit this policy: {error}") from error
        self.weights.publish(self.flat, self.weights.version)
        self._replica.forget()

    def hashes(self) -> dict[str, str]:
        """The names of this run's weights and optimiser state."""
        return {
            "weights_sha256": tensors_sha256(dict(self.module.named_parameters())),
            "optimizer_sha256": tensors_sha256(self.learner.optimizer_tensors()),
        }

    def close(self) -> None:
        """End the actors, close all environments, give the memory back."""
        for queue in self._waiting:  # slabs that nobody will learn from: views of that memory
            queue.clear()
        self._in_hand.clear()
        self._crew.close()

    @property
    def weights(self) -> WeightStore:
        """The weight store."""
        return self._crew.weights

    @property
    def actors(self) -> Actors:
        """Where the actors run."""
        return self._crew.actors

    @property
    def restarts(self) -> int:
        """Workers that were lost and replaced."""
        return self._restarts + self._crew.actors.restarts

    def _open_crew(self, schedule: Schedule | None) -> Crew:
        kept = versions_kept(self.topology.max_lag)
        crew = open_crew(self.topology, self._plan, self.flat.size, schedule.capacity if schedule else kept, schedule)
        try:
            crew.weights.publish(self.flat)
            with torch_threads(1):
                Hand(self._plan.hand, crew.weights).self_test()
        except BaseException:
            crew.close()
            raise
        return crew

    def _launch(self) -> None:
        if not self._is_launched:
            self.is_collecting = True
            try:
                self._crew.actors.launch(self._start_of, self.tell)
            finally:
                self.is_collecting = False
            self._is_launched = True

    def _start_of(self, shard: int) -> Whereabouts | None:
        ahead = [*self._in_hand, *(one for queue in self._waiting for one in queue)]
        return self.books.whereabouts(shard, [one.slab for one in ahead if one.lease.shard == shard])

    def _lease(self) -> None:
        """Hand out every lease that the pace allows: that is all that keeps actors going."""
        if not self._is_launched:
            return
        max_lag, per_update = self.topology.max_lag, self.topology.slabs_per_update
        self._crew.ring.grant(lease_limit(self._batches, max_lag, per_update))
        self._crew.actors.lease(self._crew.ring, self.weights.version)

    def _wait(self) -> None:
        self.is_collecting = True
        try:
            if self.topology.topology == "inline":
                self._crew.actors.wait()
            else:
                with self.phases.of("wait"):
                    self._crew.actors.wait()
        finally:
            self.is_collecting = False

    def _take(self) -> None:
        for one in self._crew.ring.take():
            self._waiting[one.lease.shard if self.topology.is_even else 0].append(one)

    def _ready(self) -> Taken | None:
        """The next slab of the batch, if it is there: one of every shard in turn, or whoever came first."""
        queue = self._waiting[len(self.last_schedule) % len(self._waiting)]
        if not queue:
            return None
        one = queue.popleft()
        self.last_schedule.append(slab_use(one.lease.shard, one.lease.sequence, one.slab.version))
        return one

    def _is_late(self, one: Taken) -> bool:
        oldest = int(one.slab.version.min())
        return is_too_old(self.weights.version, oldest, self.topology.max_lag, self.config.ppo.late)

    def _is_publishing(self) -> bool:
        if self.schedule is not None:
            return self.schedule.is_publishing(self.updates)
        if self._publish_updates:
            return self.updates % self._publish_updates == 0
        return now_s() - self._published_s >= self._publish_s

    def _shuffling(self, update: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(sequence(self.config.seed, Purpose.MINIBATCH, update)))

    def _collected(self, batch: Batch, version: int, age_s: float) -> dict[str, float]:
        books, ledger = self.books, self.books.ledger
        means = books.statistics.means()
        record = {
            "headrace/lag": float(lag(version, int(batch.version.min()))),
            "headrace/lag_mean": float(version - batch.version.mean()),
            "headrace/rollout_age_s": age_s,
            "headrace/queue_depth": float(sum(len(queue) for queue in self._waiting)),
            "headrace/restarts": float(self.restarts),
            "headrace/actors/env_s": self._spent.env,
            "headrace/actors/inference_s": self._spent.inference,
            "headrace/actors/idle_s": self._spent.idle,
            "headrace/least_share": books.least_share(),
            "headrace/episodes": float(books.statistics.finished),
            "headrace/ledger/produced": float(ledger.produced),
            "headrace/ledger/consumed": float(ledger.consumed),
            "headrace/ledger/rejected": float(ledger.rejected),
            "headrace/ledger/discarded": float(sum(ledger.discarded.values())),
        }
        if means is not None:
            record |= {"rollout/ep_rew_mean": means[0], "rollout/ep_len_mean": means[1]}
        log_std = getattr(self.module, "log_std", None)
        if log_std is not None:
            record["train/std"] = float(log_std.detach().exp().mean())
        return record

    def _require_same_schema(self, state: dict[str, Any]) -> None:
        saved = state["config"]
        ours, theirs = self.config.topology, saved["topology"]
        n_steps = self.config.ppo.n_steps
        observation, action = spaces.decode(state["observation_space"]), spaces.decode(state["action_space"])
        difference = explain_difference(
            rollout_schema(self.observation_space, self.action_space, n_steps, ours.n_envs),
            rollout_schema(observation, action, saved["ppo"]["n_steps"], theirs["n_envs"]),
        )
        for name, space in (("observation_space", observation), ("action_space", action)):
            if difference is None and space != getattr(self, name):  # bounds and numbers of choices have no field
                difference = f"{name}: expected {getattr(self, name)}, got {space}"
        if difference is None and saved["seed"] != self.config.seed:
            difference = f"seed: expected {self.config.seed}, got {saved['seed']}"
        if difference is not None:
            raise SchemaError(
                f"the checkpoint does not fit this run: {difference}; resume with the run's own configuration"
            )
