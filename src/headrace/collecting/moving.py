"""A saved run's place with some of its options changed: what belonged to the old place alone is chosen anew.

topology="inline"  ->  workers=auto, shards=0, inference=local, double_buffering=auto, unless they are given as well
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.collecting.topology import TopologyConfig


def left_open(place: TopologyConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that go with what is given. Some of them may be given, too: those win."""
    found: dict[str, Any] = {}
    workers, inference = given.get("workers", place.workers), place.inference
    if "topology" in given:
        found["workers"], workers = "auto", given.get("workers", "auto")
        if inference == "central" and given["topology"] != "processes":
            found["inference"] = inference = "local"
    if "topology" in given or "workers" in given:
        found["shards"] = 0
        most = int(workers) if str(workers).isdecimal() else 1
        found["inference_servers"] = max(1, min(place.inference_servers, most))
    servers = given.get("inference_servers", found.get("inference_servers", place.inference_servers))
    if given.get("inference", inference) == "local":
        found["double_buffering"] = "auto"
    if given.get("inference", inference) != "central":
        servers = 1
    most = max(1, int(servers)) if str(servers).isdecimal() else 1  # what is no number is refused by the config
    devices = place.inference_device.split(",")  # at most one for each server
    if len(devices) > most:
        found["inference_device"] = ",".join(devices[:most])
    return found


def moved(place: TopologyConfig, given: Mapping[str, Any]) -> TopologyConfig:
    """The place with the options that are given."""
    return replace(place, **{**left_open(place, given), **given})
