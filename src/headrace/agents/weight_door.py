"""New weights for a server's engine: pause, load, resume. What comes in is data: bytes, or a file of one folder.

    pause ──> requests wait at the door ──> load: safetensors -> engine.publish(state, version) ──> resume: they go on

A pause ends by itself: a learner that is gone does not stop a server for ever. Knows nothing of HTTP but statuses.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from headrace.agents.asked import RefusedError
from headrace.agents.engines.protocol import Engine
from headrace.agents.engines.weight_updates import MOST_VERSION, unpacked
from headrace.errors import HeadraceError

MOST_PAUSE_S = 60.0
MAX_WEIGHTS_BYTES = 16 << 30


class WeightDoor:
    """In front of one engine."""

    def __init__(self, engine: Engine, folder: Path | None = None, most_pause_s: float = MOST_PAUSE_S) -> None:
        self._engine, self._folder, self._most_pause_s = engine, folder, most_pause_s
        self._opened: asyncio.Event | None = None  # None: nobody has to wait
        self._timer: asyncio.TimerHandle | None = None
        self._loading = asyncio.Lock()

    @property
    def is_paused(self) -> bool:
        """Whether requests wait."""
        return self._opened is not None

    def pause(self) -> None:
        """From now on requests wait; those under way go on."""
        self.resume()
        self._opened = asyncio.Event()
        self._timer = asyncio.get_running_loop().call_later(self._most_pause_s, self.resume)

    def resume(self) -> None:
        """Requests go on."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def passed(self) -> None:
        """Wait while it is paused."""
        while self._opened is not None:
            await self._opened.wait()

    async def load(self, data: bytes, version: object) -> int:
        """Weights from the bytes of a safetensors file."""
        if type(version) is not int or not 0 <= version <= MOST_VERSION:
            got = f"an integer of {version.bit_length()} bits" if type(version) is int else str(version)[:80]
            raise RefusedError(400, f"version: expected a whole number from 0 to {MOST_VERSION}, got {got}", "version")
        async with self._loading:
            try:
                state = await asyncio.to_thread(unpacked, data)
                return await asyncio.to_thread(self._engine.publish, state, version)
            except (ValueError, HeadraceError) as error:
                raise RefusedError(400, str(error)) from error

    async def load_file(self, path: object, version: object) -> int:
        """Weights from a file below the server's folder."""
        return await self.load(await asyncio.to_thread(self._read, path), version)

    def _read(self, path: object) -> bytes:
        folder = self._folder
        if folder is None:
            raise RefusedError(403, "path: this server was started without --weights-dir; send the bytes", "path")
        if not isinstance(path, str) or not path or "\0" in path:
            raise RefusedError(
                400, f"path: expected the name of a file below --weights-dir, got {str(path)[:80]}", "path"
            )
        inside = folder.resolve()
        whole = (inside / path).resolve()  # links are followed first: where they lead is what counts
        if not whole.is_relative_to(inside) or whole == inside:
            raise RefusedError(403, "path: expected a file below this server's --weights-dir", "path")
        try:
            handle = os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(handle, "rb") as file:
                about = os.fstat(handle)
                if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_WEIGHTS_BYTES:
                    raise RefusedError(400, f"path: expected a file of at most {MAX_WEIGHTS_BYTES:,} bytes", "path")
                return file.read()
        except OSError as error:
            raise RefusedError(404, f"path: {error.strerror}", "path") from error
