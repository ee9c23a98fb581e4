"""The process that talks to W&B: what comes in as lines of JSON goes to wandb; the first line is for wandb.init.

It runs beside training, with a low priority, and may hang or fail as it likes. The end of its input is the end.
"""

from __future__ import annotations

import json
import os
import sys

from headrace.telemetry.sinks import STEP_TAG


def main() -> None:
    """Until the input ends."""
    os.nice(5)
    options = json.loads(sys.stdin.readline())
    import wandb

    run = wandb.init(**options)
    run.define_metric("*", step_metric=STEP_TAG)  # the x axis: environment steps
    for line in sys.stdin:
        run.log(json.loads(line))
    run.finish()


if __name__ == "__main__":
    main()
