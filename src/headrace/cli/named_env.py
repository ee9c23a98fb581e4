"""The environment that --env names, in commands that build the run's own if none is named.

--env, --env-kwargs, --wrappers, --action-repeat --named_env--> EnvSpec, or None
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.options import env_kwargs

if TYPE_CHECKING:
    from headrace.envs.spec import EnvSpec


def named_env(env: str | None, kwargs: str, wrappers: tuple[str, ...], action_repeat: int) -> EnvSpec | None:
    """What the user named; None if that is nothing. That the others are not given alone is up to `require_with`."""
    if env is None:
        return None
    from headrace.envs.spec import EnvSpec

    return EnvSpec(env, env_kwargs(kwargs), wrappers, action_repeat)
