"""THE MAP: how experience becomes weights. Read this first.

    env.step ──> slab ──> ring ──> learner (completion, advantages, PPO) ──> weights ──> actors
                  ^                                                             │
                  └──────────────────── acts with version v ────────────────────┘

`Run` holds the parts of one run and `Run.update` is the whole loop, in the order the data moves. Everything that makes
a run what it is between two updates is in `Run.snapshot`; `Run.restore` goes on from it bit for bit.
Does not know files, views, command lines or signals: that is `session`.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np

from headrace.checkpoints.snapshot import Snapshot
from headrace.clock import now_ns
from headrace.envs.actions import sender
from headrace.envs.seeds import Purpose, leaf, sequence
from headrace.envs.vector_env import LiveEpisode, VectorEnv
from headrace.episodes.journal import Journal
from headrace.episodes.statistics import EpisodeStatistics, Finished
from headrace.errors import CheckpointError, HeadraceError, SchemaError
from headrace.inference.local import LocalInference
from headrace.inference.threads import torch_threads
from headrace.launch.inline import InlineActors
from headrace.launch.shard import ShardPlan, actor_of, build_envs, episode_seed
from headrace.launch.topology import resolve
from headrace.learning.batch import Batch, assemble, write_back
from headrace.learning.completion import complete
from headrace.learning.lag import lag, lease_limit
from headrace.learning.learner import Learner
from headrace.memory import spaces
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.ledger import Ledger
from headrace.memory.ring import Ring, Taken
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
    """The parts of a run, connected. One thread; close it when done."""

    def __init__(self, config: RunConfig, module: Module | None = None) -> None:
        keep_freed_memory()
        self.config = config
        self.topology = resolve(config.topology)
        n_envs, n_steps, shards = config.topology.n_envs, config.ppo.n_steps, self.topology.shards
        plans = [ShardPlan(config.env, shard, config.seed) for shard in shards]
        envs: list[VectorEnv] = []
        try:
            envs.extend(build_envs(plan) for plan in plans)
            self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
            seed = leaf(config.seed, Purpose.WEIGHTS)
            self.module = module or build_policy(config.policy, self.observation_space, self.action_space, seed)
            noise, largest = as_policy(self.module).noise, as_policy(self.module).largest_tile
            self.tile = config.policy.tile or default_tile(n_envs, largest)
            actors = [actor_of(plan, env, noise) for plan, env in zip(plans, envs, strict=True)]

            self.flat = FlatParameters(self.module)
            self.weights = WeightStore(self.flat.size, capacity=self.topology.max_lag + 2)
            self.weights.publish(self.flat)
            replica = FlatParameters(copy.deepcopy(self.module))
            self._replica = Replica(replica)
            inference = LocalInference(replica.module, self.observation_space, self.action_space, self.tile)
            with torch_threads(1):
                inference.self_test()
            self._actors = InlineActors(actors, inference.act, self._load_latest)
            self.ring = Ring(
                [rollout_schema(self.observation_space, self.action_space, n_steps, len(s)) for s in shards],
                slabs_per_shard=1,
            )
            self.learner = Learner(self.flat, config.ppo, self._shuffling)
            self._policy = self.learner.evaluator(replica.module)
        except BaseException:
            for env in envs:
                env.close()
            raise
        self.ledger = Ledger(len(shards))
        self.statistics = EpisodeStatistics(n_envs)
        self.journal = Journal(n_envs, partial(episode_seed, config.seed), sender(self.action_space))
        self.phases = Phases(PHASES)
        self.updates = 0
        self.steps = 0
        self._last_obs = np.zeros((n_envs, *spaces.shape_of(self.observation_space)), self.observation_space.dtype)
        self._noise_counter = np.zeros(n_envs, np.int64)
        self._is_begun = False
        self.is_collecting = False  # a signal may break off collecting, but not learning
        self.is_between_updates = True  # a snapshot is a valid checkpoint
        self.steps_of_last_update = 0

    def update(self, total_timesteps: int) -> tuple[dict[str, float], list[Finished]]:
        """One update: collect a batch, learn from it, publish. Returns its record and the episodes that ended."""
        with torch_threads(1):
            taken = self.collect()
        self.is_between_updates = False
        slabs = [one.slab for one in taken]
        batch = assemble(slabs)
        oldest, age_s = int(batch.version.min()), (now_ns() - min(s.word(Word.STARTED_NS) for s in slabs)) / 1e9

        with torch_threads(self.config.ppo.learner_threads):
            with self.phases.of("completion"):
                complete(batch, self.policy_of(oldest))
                write_back(batch, slabs)
            with self.phases.of("advantages"):
                advantage, returns = self.learner.advantages(batch)
            with self.phases.of("sgd"):
                progress_remaining = max(0.0, 1.0 - self.steps / max(1, total_timesteps))
                trained = self.learner.update(batch, advantage, returns, self.updates, progress_remaining)

        finished = self.statistics.add(batch.reward, batch.terminated, batch.truncated, batch.valid, batch.episode)
        self.ledger.consume(batch.steps)
        self.ledger.check()
        self.release(taken)  # the batch may be the slab's own memory, but nobody fills it before the next collect
        record = trained | self._collected(batch, age_s, lag(self.weights.version, oldest))
        self.weights.publish(self.flat)
        self.updates += 1
        self.steps_of_last_update = batch.steps
        self.steps += batch.steps
        self.is_between_updates = True
        return record, finished

    def collect(self) -> list[Taken]:
        """One slab of every shard: leased, filled, committed and taken, journalled and entered in the ledger."""
        self.ring.grant(lease_limit(self.weights.version, self.topology.max_lag, self.topology.slabs_per_update))
        self.is_collecting = True
        try:
            self._begin()
            self._actors.collect(self.ring)
        finally:
            self.is_collecting = False
        for name, seconds in self._actors.spent_s().items():
            self.phases.add(name, seconds)
        taken = self.ring.take()
        for one in taken:
            shard, slab = self.topology.shards[one.lease.shard], one.slab
            self.ledger.produce(one.lease.shard, one.lease.sequence, int(slab.valid.sum()))
            self.journal.append(shard, slab.action, slab.terminated, slab.truncated, slab.valid)
            self._last_obs[shard.start : shard.stop] = slab.last_obs
            self._noise_counter[shard.start : shard.stop] = slab.noise_counter
        if len(taken) != self.topology.slabs_per_update:
            raise HeadraceError(
                f"expected one slab of each of {self.topology.slabs_per_update} shards, got {len(taken)}"
            )
        return taken

    def release(self, taken: list[Taken]) -> None:
        """Hand slabs back to the actors."""
        for one in taken:
            self.ring.release(one.lease)

    def policy_of(self, version: int) -> Evaluator:
        """The policy with the weights of a version that is still kept; for reading, not for training."""
        self._replica.load(self.weights, version)
        return self._policy

    def snapshot(self) -> Snapshot:
        """Everything the next update depends on, copied: the run may go on. Call it between updates."""
        live = self.journal.live(range(self.config.topology.n_envs))
        sequences = self.ring.sequences  # a lease that was broken off is not counted: it will be granted again
        return Snapshot(
            weights={name: tensor.clone() for name, tensor in self.module.state_dict().items()},
            optimizer={name: tensor.clone() for name, tensor in self.learner.optimizer_tensors().items()},
            episodes={
                "last_obs": self._last_obs.copy(),
                "noise_counter": self._noise_counter.copy(),
                "lengths": np.array([len(one.actions) for one in live], np.int64),
                "actions": self._journalled(live),
            },
            state={
                "config": encode(self.config),
                "observation_space": spaces.encode(self.observation_space),
                "action_space": spaces.encode(self.action_space),
                "updates": self.updates,
                "steps": self.steps,
                "version": self.weights.version,
                "is_begun": self._is_begun and any(sequences),
                "minibatches_done": self.learner.minibatches_done,
                "live_episodes": [[one.episode, one.seed] for one in live],
                "ledger": self.ledger.encode(),
                "statistics": self.statistics.encode(),
                "ring": {"sequences": sequences, "leased": sum(sequences)},
                "hashes": self.hashes(),
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot of a run with the same spaces, bit for bit."""
        state = snapshot.state
        self._require_same_schema(state)
        self.load_weights(snapshot)
        self.learner.restore_optimizer(snapshot.optimizer, state["minibatches_done"])
        self.weights.publish(self.flat, state["version"])
        self.updates, self.steps = state["updates"], state["steps"]
        self.ledger.restore(state["ledger"])
        self.statistics.restore(state["statistics"])
        self.ring.resume(state["ring"]["sequences"], state["ring"]["leased"])
        if not state["is_begun"]:
            return
        lengths, actions = snapshot.episodes["lengths"], snapshot.episodes["actions"]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        live = [
            LiveEpisode(env, episode, seed, actions[starts[env] : starts[env + 1]])
            for env, (episode, seed) in enumerate(state["live_episodes"])
        ]
        self.journal.restore(live)
        self._last_obs[:] = snapshot.episodes["last_obs"]
        self._noise_counter[:] = snapshot.episodes["noise_counter"]
        self._actors.restore(self.topology.shards, live, self._last_obs, self._noise_counter)
        self._is_begun = True

    def load_weights(self, snapshot: Snapshot) -> None:
        """Take over a snapshot's parameters, and nothing else."""
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
        """Close all environments."""
        self._actors.close()

    def _begin(self) -> None:
        if not self._is_begun:
            self._actors.begin(self.topology.shards, self._last_obs)
            self._is_begun = True

    def _load_latest(self) -> int:
        self._replica.load(self.weights, self.weights.version)
        return self.weights.version

    def _shuffling(self, update: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(sequence(self.config.seed, Purpose.MINIBATCH, update)))

    def _collected(self, batch: Batch, age_s: float, batch_lag: int) -> dict[str, float]:
        means = self.statistics.means()
        ledger = self.ledger
        record = {
            "headrace/lag": float(batch_lag),
            "headrace/rollout_age_s": age_s,
            "headrace/queue_depth": 0.0,  # inline: a slab is consumed before the next one is leased
            "headrace/restarts": 0.0,
            "headrace/episodes": float(self.statistics.finished),
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

    def _journalled(self, live: list[LiveEpisode]) -> Any:
        shape, dtype = spaces.shape_of(self.action_space), self.action_space.dtype
        parts = [one.actions.reshape(-1, *shape).astype(dtype, copy=False) for one in live]
        return np.concatenate(parts)

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
        if difference is None and len(state["ring"]["sequences"]) != len(self.topology.shards):
            difference = f"shards: expected {len(self.topology.shards)}, got {len(state['ring']['sequences'])}"
        if difference is None and saved["seed"] != self.config.seed:
            difference = f"seed: expected {self.config.seed}, got {saved['seed']}"
        if difference is not None:
            raise SchemaError(
                f"the checkpoint does not fit this run: {difference}; resume with the run's own configuration"
            )
