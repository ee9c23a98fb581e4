"""The environment that --env names, in commands that build the run's own if none is named.

--env, --env-kwargs, --wrappers, --action-repeat --named_env--> EnvSpec, or None; options that would be lost are refused
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.options import env_kwargs
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.envs.spec import EnvSpec


def named_env(env: str | None, kwargs: str, wrappers: tuple[str, ...], action_repeat: int) -> EnvSpec | None:
    """What the user named; None if that is nothing."""
    given = {"--env-kwargs": env_kwargs(kwargs), "--wrappers": wrappers, "--action-repeat": action_repeat != 1}
    if env is None:
        if lost := [name for name, is_given in given.items() if is_given]:
            raise UsageError(
                f"{', '.join(lost)}: expected --env as well; without it the run's own environment is built as it was"
            )
        return None
    from headrace.envs.spec import EnvSpec

    return EnvSpec(env, env_kwargs(kwargs), wrappers, action_repeat)
