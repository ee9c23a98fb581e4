"""A video of an episode: frames of an environment's render(), written by pillow.

    Film.look(env), after every step --> a palette image each --> save: .gif, .png (APNG) or .webp

Of a long episode every second, third ... frame is kept, so that memory is bounded; it lasts as long as it did.
Does not know what is filmed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from headrace.errors import EnvError, UsageError
from headrace.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS = {".gif": "GIF", ".png": "PNG", ".webp": "WEBP"}
_MOST_FRAMES = 2000
_MOST_PIXELS = 640  # of the longer side
_FPS = 30.0  # where the environment does not say


def require_video_name(path: Path) -> None:
    """Raise unless it is a name that a video can be written to."""
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"render: expected a file name that ends in .gif, .png (animated) or .webp, got {str(path)!r}")
    require("video", "render")
    if not path.parent.is_dir():
        raise UsageError(f"render: expected a file in an existing directory, got {str(path)!r}")


class Film:
    """The frames of one episode."""

    def __init__(self) -> None:
        self._frames: list[Image] = []
        self._fps = _FPS
        self._seen = 0
        self._every = 1

    def look(self, env: gym.Env[Any, Any]) -> None:
        """One more frame."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        self._fps = float(env.metadata.get("render_fps") or _FPS)
        self._frames.append(_image(env.render()))
        if len(self._frames) > _MOST_FRAMES:
            self._frames, self._every = self._frames[::2], 2 * self._every

    def save(self, path: Path) -> None:
        """Write all of them."""
        first, *rest = self._frames
        duration_ms = max(20, round(1000 * self._every / self._fps))  # viewers slow down what is faster
        kind = _FORMATS[path.suffix.lower()]
        try:
            first.save(path, kind, save_all=True, append_images=rest, duration=duration_ms, loop=0)
        except OSError as error:
            raise UsageError(f"render: {path} can't be written: {error}") from error


def _image(frame: Any) -> Image:
    from PIL import Image

    pixels = np.asarray(frame)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise EnvError(
            f"render: expected frames of shape [height, width, 3] and uint8 from render_mode=rgb_array, got "
            f"{type(frame).__name__} of {pixels.dtype} and shape {pixels.shape}; the environment must support it"
        )
    image = Image.fromarray(pixels)
    image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    return image.quantize(colors=256)
