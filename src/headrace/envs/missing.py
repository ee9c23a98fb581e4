"""Why an environment could not be made, and what to install or write instead: for the error's one line.

    what was raised ──reason──> its type and words; without words, the line that raised it
    an id, what was raised ──hint──> the package that brings it, a newer version of it, or what is spelled like it

Packages are known by the beginning of the ids that they register. Imports none of them.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym

from headrace.plain_text import MAX_ERROR, message_of
from headrace.presets import preset_of

# Beginning of an id: (the module that registers it, what to install)
_PACKAGES = {
    "ALE/": ("ale_py", "'headrace[atari]'"),
    "Adroit": ("gymnasium_robotics", "gymnasium-robotics"),
    "AntMaze": ("gymnasium_robotics", "gymnasium-robotics"),
    "BabyAI-": ("minigrid", "minigrid"),
    "Fetch": ("gymnasium_robotics", "gymnasium-robotics"),
    "FrankaKitchen": ("gymnasium_robotics", "gymnasium-robotics"),
    "Hand": ("gymnasium_robotics", "gymnasium-robotics"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "MiniWorld-": ("miniworld", "miniworld"),
    "PointMaze": ("gymnasium_robotics", "gymnasium-robotics"),
    "dm_control/": ("shimmy", "'shimmy[dm-control]'"),
    "highway": ("highway_env", "highway-env"),
    "procgen": ("procgen", "procgen"),
}
_INSTALL = dict(_PACKAGES.values())
_EXTRAS = {"Box2D": "box2d", "mujoco": "mujoco"}  # modules that Gymnasium's own environments need


def reason(error: BaseException) -> str:
    """What was raised, in words."""
    # gymnasium.make repeats what is known.
    text = message_of(error, MAX_ERROR).partition(" was raised from the environment creator for ")[0]
    if text:
        return f"{type(error).__name__}: {text}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    last = frames[-1]
    return f"{type(error).__name__} without a message, from `{last.line}` ({Path(last.filename).name}:{last.lineno})"


def hint(env: str, error: BaseException) -> str:
    """What to do about an environment that could not be made, to follow what was raised; empty if nothing is known."""
    newer = _newest(env)
    if newer is not None:
        return f"; {newer} is its newest version"
    if "unexpected keyword argument 'frameskip'" in message_of(error):
        return "; the preset atari sets it, for ids that begin with ALE/"
    missing = next((one.name for one in _chain(error) if isinstance(one, ModuleNotFoundError) and one.name), None)
    if missing in _EXTRAS:
        return f"; or pip install 'headrace[{_EXTRAS[missing]}]'"
    if any("pip install" in message_of(one) for one in _chain(error)):
        return ""
    return f"; {to_install(missing)}" if missing else ""


def is_not_installed(error: BaseException) -> bool:
    """Whether it says that a package is missing: the line says it all, and no environment has run."""
    return isinstance(error, gym.error.DependencyNotInstalled)


def to_install(module: str) -> str:
    """How to get a module that is not there."""
    top = module.partition(".")[0]
    if top in _INSTALL:
        return f"pip install {_INSTALL[top]}"
    return f"install the package that brings it, often: pip install {top.replace('_', '-')}"


def unknown(env_id: str) -> str:
    """What to do about an id that nothing has registered."""
    if env_id.endswith(".py"):
        return f"expected module:attribute for a class of your own, as in {module_of(env_id)}:MyEnv"
    family = [one for one in gym.registry if any(one.startswith(start) and env_id.startswith(start)
                                                 for start in _PACKAGES)]  # fmt: skip
    close = difflib.get_close_matches(env_id, family, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    for beginning, (module, package) in _PACKAGES.items():
        if env_id.startswith(beginning):
            return f"{module} registers it: pip install {package}, and write {module}:{env_id}"
    if re.search(r"NoFrameskip-v\d|Deterministic-v\d|-ramD?", env_id):
        return f"an Atari id without a namespace? pip install {_INSTALL['ale_py']}, and write ale_py:{env_id}"
    close = difflib.get_close_matches(env_id, list(gym.registry), n=3, cutoff=0.6)
    guess = f"did you mean {' or '.join(close)}?" if close else "see gymnasium.pprint_registry()"
    return f"{guess} (a Gymnasium id, module:id for one that a package registers, or module:attribute for your own)"


def module_of(path: str) -> str:
    """How a file's name is written as a module."""
    return path.removesuffix(".py").removeprefix("./").replace("/", ".")


def _newest(env: str) -> str | None:
    """A later version of an id that is registered."""
    found = re.fullmatch(r"(.+)-v(\d+)", env)
    if found is None or env not in gym.registry:
        return None
    name, version = found[1], int(found[2])
    versions = [entry.version for entry in gym.registry.values() if entry.version is not None
                and entry.id == f"{name}-v{entry.version}"]  # fmt: skip
    return f"{name}-v{max(versions)}" if versions and max(versions) > version else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it was raised for."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def not_around_vectors(env: object, wrappers: tuple[object, ...]) -> str:
    """Why wrappers can't be around vector environments, and what to do; a preset's were not typed by anybody."""
    name = preset_of(wrappers)
    if not name:
        return "wrappers and action_repeat go inside a factory of vector environments"
    own = "put its wrappers inside your factory"
    if isinstance(env, str) and env.startswith("envpool:"):
        own = 'give EnvPool its own options, as env_kwargs {"stack_num": 4, "frame_skip": 4, "reward_clip": true}'
    return f"the preset {name} wraps single environments (ALE/...): leave it out, {own}, and its numbers as options"
