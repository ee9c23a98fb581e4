"""A writer in another process that knows no environment and no policy: it writes rewards, and may die of it."""

from __future__ import annotations

import os
import signal

from headrace.memory.schema import Schema
from headrace.memory.segment import SharedSegment
from headrace.memory.slab import Slab


def write_rewards(segment_name: str, schema: Schema, fence: int, dies: bool) -> None:
    """Fill the rewards with the fence and commit; or be killed in between, as by kill -9."""
    segment = SharedSegment.attach(segment_name)
    slab = Slab(schema, segment.buffer, create=False)
    slab.reward.fill(fence)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    slab.commit(fence, committed_ns=1)
