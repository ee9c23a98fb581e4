"""`headrace eval RUN`: plays episodes with a trained policy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.cli.options import parse, translate
from headrace.cli.printing import warn
from headrace.errors import UsageError


@dataclass(frozen=True)
class EvalOptions:
    """Play whole episodes with a trained policy and print the mean return."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, a checkpoint, or what PPO.save wrote."""
    n_eval_episodes: int = 100
    """Episodes to play."""
    deterministic: bool = True
    """The policy's best action; --no-deterministic samples, as in training."""
    env: str | None = None
    """Another environment with the same spaces (id or module:attribute)."""
    reward_threshold: float | None = None
    """Exit with code 3 if the mean return is below this."""
    json: Path | None = None
    """Also write the returns and lengths to this file."""
    trust: bool = False
    """Import and call what the run names (module:attribute, kwargs, wrappers) without asking."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(EvalOptions, translate(argv), "eval")
    if options.n_eval_episodes < 1:
        raise UsageError(f"--n-eval-episodes: expected at least 1, got {options.n_eval_episodes}")
    if options.json is not None and not options.json.parent.is_dir():
        raise UsageError(f"--json {options.json}: expected a file in an existing directory")
    answer = None if options.json is None else options.json.absolute()  # environments may change the directory
    from headrace.api.evaluation import evaluate_parts
    from headrace.api.model import Model
    from headrace.checkpoints.snapshot import find_latest
    from headrace.cli.own_modules import find_own_modules
    from headrace.envs.spec import EnvSpec
    from headrace.loading import admit, is_admitted

    found, snapshot, damaged = find_latest(options.run)
    for line in damaged:
        warn(line)
    env = None if options.env is None else EnvSpec(options.env)
    admit(snapshot, env, options.trust)
    built = None if env is None or is_admitted(snapshot, options.trust) else env  # else the run's own is not built
    find_own_modules(snapshot.state["config"]["env"] if built is None else {}, {} if env is None else env.encode())
    with Model.from_snapshot(snapshot, built, weights_only=True, trust=options.trust) as model:
        result = evaluate_parts(model.parts, options.n_eval_episodes, options.deterministic, env)
    print(
        f"{found.name} at {snapshot.state['steps']:,} steps: mean return {result.mean_reward:.2f} +/- "
        f"{result.std_reward:.2f} over {len(result.returns)} episodes, mean length {result.mean_length:.1f}"
    )
    if answer is not None:
        data = {"mean_reward": result.mean_reward, "std_reward": result.std_reward}
        try:
            answer.write_text(json.dumps(data | {"returns": result.returns, "lengths": result.lengths}) + "\n")
        except OSError as error:
            raise UsageError(f"--json {options.json}: can't be written: {error}") from error
    wanted = options.reward_threshold
    return 3 if wanted is not None and result.mean_reward < wanted else 0
