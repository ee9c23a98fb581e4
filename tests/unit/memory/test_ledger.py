"""The ledger: produced = consumed + rejected + discarded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LedgerError
from headrace.memory.ledger import Ledger
from support.generators import quick

fates = st.sampled_from(["consumed", "rejected", "discarded"])


def settle(ledger: Ledger, fate: str, steps: int) -> None:
    if fate == "consumed":
        ledger.consumed += steps
    elif fate == "rejected":
        ledger.rejected += steps
    else:
        ledger.discarded["interrupted"] += steps


@quick
@given(st.lists(st.tuples(st.integers(0, 500), fates), max_size=20), st.integers(0, 19), st.sampled_from([-1, 1]))
def test_it_balances_iff_every_step_is_accounted_for(events: list[tuple[int, str]], spoilt: int, by: int) -> None:
    ledger = Ledger()
    for steps, fate in events:
        ledger.produced += steps
        settle(ledger, fate, steps)
    ledger.check()
    assert sum(ledger.counts().values()) == 2 * ledger.produced
    settle(ledger, events[spoilt % len(events)][1] if events else "consumed", by)
    with pytest.raises(LedgerError, match="does not balance"):
        ledger.check()


def test_a_produced_step_must_go_somewhere() -> None:
    with pytest.raises(LedgerError, match="produced 32, accounted for 0"):
        Ledger(produced=32).check()


def test_it_goes_on_from_json() -> None:
    ledger = Ledger(produced=17, consumed=12, rejected=2)
    ledger.discarded["class C"] += 3
    again = Ledger()
    again.restore(json.loads(json.dumps(ledger.encode())))
    assert again == ledger
    again.check()
    saved = again.encode()
    again.discarded["class C"] += 1
    assert saved == ledger.encode(), "what was saved is a copy"
    assert ledger.counts() == {"produced": 17, "consumed": 12, "rejected": 2, "discarded": 3}
