"""The first look at an environment for worker processes: in a process of its own, so that it can't take the learner.

    spec ──> a child: builds one, resets it once ──> its spaces and the seeds that it takes, as data

One that dies is looked at again, as a worker would be replaced; after the third time it is an error that says where.
One that hangs has used up all patience there is, and is an error at once, as in the learner's own process. Does not
know topologies.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from headrace.collecting.topology import TopologyConfig
from headrace.collecting.workers import PRELOAD
from headrace.envs.building import first_look
from headrace.envs.mended import mended
from headrace.envs.spec import EnvSpec
from headrace.evaluation.elsewhere import Elsewhere, Hung, NoAnswer
from headrace.memory import spaces
from headrace.memory.crash_note import CrashNote
from headrace.memory.spaces import ObservationSpace, Space
from headrace.runtime.standby import Standby

_TRIES = 3

logger = logging.getLogger(__name__)


def look_elsewhere(spec: EnvSpec, seed: int, config: TopologyConfig) -> tuple[EnvSpec, ObservationSpace, Space]:
    """The spec as it is to be built from now on, and the spaces of observations and actions."""
    standby, tries = Standby(config.start_method, PRELOAD, spares=0), 0
    while True:
        child, tries = standby.take("headrace-first-look"), tries + 1
        payload = spec, seed, config.nan_policy
        try:
            with Elsewhere(child, spec, 1, look, payload, config.hang_ceiling_s) as looking:
                seen = json.loads(looking.answer())
        except Hung:
            raise
        except NoAnswer as error:
            if tries == _TRIES:
                error.add_note(f"{_TRIES} times in a row, each time in a fresh process.")
                raise
            text = "\n".join([f"{error}; trying again", *getattr(error, "__notes__", ())])
            logger.warning("%s", text)  # not the error: its traceback holds the memory of the notes
            continue
        observation, action = spaces.decode_observation(seen["observation"]), spaces.decode(seen["action"])
        return replace(spec, seed_bits=seen["seed_bits"]), observation, action


def look(payload: tuple[EnvSpec, int, str], note: CrashNote) -> bytes:
    """The child's side."""
    spec, seed, nan_policy = payload
    spec, envs = first_look(spec, seed, note=note)
    try:
        mended(envs, nan_policy)  # refused here, before anything starts, if they can't be
        found = {"observation": spaces.encode(envs.observation_space), "action": spaces.encode(envs.action_space)}
    finally:
        envs.close()
    return json.dumps(found | {"seed_bits": spec.seed_bits}).encode()
