"""Episodes as a Minari dataset, through Minari's own library (HDF5); `minari.load_dataset(ID)` finds it afterwards.

    Episode --EpisodeBuffer--> some MiB of them --> <datasets>/.headrace-.../data --finish--> <datasets>/ID/data

Images are stored as they are: Minari's JPEG would change them. `infos` hold version, and log_prob and value where they
are known: entry t belongs to observation t, and the last one (-1 or NaN) to none. Minari counts episodes from 0; which
of headrace's an episode is, its metadata say.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.envs.actions import sender
from headrace.envs.adapters.gymnasium_spaces import kept, nested
from headrace.errors import UsageError
from headrace.exports.episode import Episode, writing
from headrace.memory.spaces import Space, as_seen

PREFIX = "minari:"
_GROUP_BYTES, _GROUP_EPISODES = 32 << 20, 1024
_EPISODE_BYTES = 64 << 10  # what HDF5 takes for the structure of an episode, at most


class MinariFile:
    """One dataset. `spaces` are Gymnasium's, of observations and actions; `env_spec` its EnvSpec if it has one."""

    def __init__(
        self, dataset_id: str, spaces: tuple[Any, Any], env_spec: Any, action: Space, about: Mapping[str, str]
    ) -> None:
        try:
            import h5py  # noqa: F401  # Minari's storage needs it, and says so late
            import minari
            from minari.dataset.minari_dataset import parse_dataset_id
            from minari.dataset.minari_storage import MinariStorage
            from minari.storage.datasets_root_dir import get_dataset_path
        except ImportError as error:
            raise UsageError(f"{PREFIX}{dataset_id}: needs Minari: pip install 'headrace[minari]'") from error
        try:
            self._namespace, _, _ = parse_dataset_id(dataset_id)
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{PREFIX}{dataset_id}: expected an id such as cartpole/mine-v0, got {dataset_id!r}"
            ) from error
        self._id, self._path = dataset_id, Path(get_dataset_path(dataset_id))
        if self._path.exists():
            raise UsageError(f"{PREFIX}{dataset_id}: there is one already, in {self._path}; choose another id")
        self._space = kept(spaces[0])
        self._send, self._waiting, self._bytes, self._count = sender(action), list[Episode](), 0, 0
        self._temporary = Path(get_dataset_path("")) / f".headrace-{os.getpid()}-{secrets.token_hex(4)}"
        with writing(f"{PREFIX}{dataset_id}"):
            self._temporary.mkdir(parents=True)
        try:
            self._storage = MinariStorage.new(
                self._temporary / "data",
                self._space,
                spaces[1],
                env_spec=env_spec,
                data_format="hdf5",
                jpeg_encoding=False,
            )
            self._storage.update_metadata({"dataset_id": dataset_id, "minari_version": minari.__version__, **about})
        except BaseException:
            self.discard()
            raise

    def add(self, episode: Episode) -> None:
        """Written with others: opening the file for each takes long."""
        self._waiting.append(episode)
        self._bytes += episode.size_bytes
        if self._bytes >= _GROUP_BYTES or len(self._waiting) >= _GROUP_EPISODES:
            self._write()

    def finish(self) -> None:
        """Let it appear under its name."""
        from minari.namespace import create_namespace, list_local_namespaces

        self._write()
        if not self._count:
            raise UsageError(f"{PREFIX}{self._id}: expected episodes, got no whole episode; write more batches")
        with writing(f"{PREFIX}{self._id}"):
            if self._namespace is not None and self._namespace not in list_local_namespaces():
                create_namespace(self._namespace)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self._temporary, self._path)

    def discard(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _write(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        ids = [{"headrace_env_index": one.env_index, "headrace_episode": one.episode} for one in waiting]
        first, self._count = self._count, self._count + len(waiting)
        with writing(f"{PREFIX}{self._id}"):
            self._require_room(waiting)
            self._storage.update_episodes([self._buffer(one) for one in waiting])
            self._storage.update_episode_metadata(ids, range(first, self._count))

    def _require_room(self, waiting: list[Episode]) -> None:
        """Before HDF5 finds out: its library crashes the process when a disk is full."""
        needed = sum(_EPISODE_BYTES + 2 * one.size_bytes for one in waiting)
        free = shutil.disk_usage(self._temporary).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"needs up to {needed:,} bytes, {free:,} are free")

    def _buffer(self, one: Episode) -> Any:
        from minari.data_collector.episode_buffer import EpisodeBuffer

        terminated, truncated = one.flags
        infos = {"version": np.append(one.version, -1)}
        for name in ("log_prob", "value"):
            values = getattr(one, name)
            if values is not None:
                infos[name] = np.append(values, np.float32(np.nan))
        return EpisodeBuffer(
            seed=one.seed, observations=nested(self._space, as_seen(one.leaves)),
            actions=self._send(one.action), rewards=one.reward, terminations=terminated, truncations=truncated,
            infos=infos,
        )  # fmt: skip
