"""Who a call of run() waits for outside of it: the learner that has to publish, and servers that are all away.

Every such wait is explained, has a limit, and ends the call in order: what was finished is kept, the rest is played
when the run is continued. Does not know workers.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from headrace.agents.engines.protocol import Engine
from headrace.agents.limits import Limits
from headrace.agents.scheduler import Scheduler
from headrace.clock import now_s
from headrace.errors import UsageError

_LOOK_S = 0.05  # between looks at the learner that is waited for
_WARN_S = 1.0  # without new weights, until the log says that they are waited for

logger = logging.getLogger(__name__)


def require_servers(engine: Engine) -> bool:
    """Whether the engine waits for all of its servers, and has said so; an error if that takes too long."""
    outage = getattr(engine, "outage", None)  # engines of this process have no servers
    return bool(outage()) if outage is not None else False


def with_patience(limits: Limits, engine: Engine) -> Limits:
    """Limits by which an answer may take longer, as long as the engine may wait for its servers."""
    return replace(limits, engine_s=limits.engine_s + float(getattr(engine, "patience_s", 0.0)))


class LearnerWatch:
    """The learner that publishes weights, as seen by groups that may not start before that."""

    def __init__(self, scheduler: Scheduler, engine: Engine, limit_s: float) -> None:
        self._scheduler, self._engine, self._limit_s = scheduler, engine, limit_s
        self._since_s: float | None = None
        self._is_reported = False

    def is_waited_for(self) -> bool:
        """Whether nothing goes on without it; after limits.publish_s that is an error."""
        if not self._scheduler.is_held(self._engine.version):
            self._since_s, self._is_reported = None, False
            return False
        self._since_s = now_s() if self._since_s is None else self._since_s
        waited_s = now_s() - self._since_s
        what = (
            f"no group may start before the next publish(): {self._scheduler.accepted} were accepted, and the weights "
            f"are of version {self._engine.version}"
        )
        if waited_s > self._limit_s:
            raise UsageError(f"{what}; there was none within limits.publish_s = {self._limit_s:g} s")
        if waited_s > min(_WARN_S, 0.5 * self._limit_s) and not self._is_reported:
            self._is_reported = True
            logger.warning("%s; waiting for it", what)
        return True

    def wait(self) -> None:
        """Until it has published."""
        pause = threading.Event()
        while self.is_waited_for():
            pause.wait(_LOOK_S)
