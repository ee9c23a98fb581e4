"""Fixtures of the fault tests."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from support.walks import Warnings


@pytest.fixture
def warned() -> Any:
    handler, logger = Warnings(), logging.getLogger("headrace.collecting")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
