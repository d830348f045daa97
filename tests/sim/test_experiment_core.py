"""The experiment's core through a thousand seeded worlds, and that these worlds hold what they promise."""

from __future__ import annotations

from collections import Counter

import pytest

from cloche.core.schedule import Stop
from cloche.testing.simulator import Fault, simulate

SEEDS = 1000
_BATCH = 100


@pytest.mark.parametrize("first", range(0, SEEDS, _BATCH))
def test_what_must_always_hold_does(first: int) -> None:
    for seed in range(first, first + _BATCH):
        report = simulate(seed)
        if report.stop is Stop.RUNNING:
            assert len({line.name for line in report.attempts}) == report.planned


def test_every_fault_is_met_and_the_seed_decides_everything() -> None:
    met: Counter[str] = Counter()
    for seed in range(200):
        met += simulate(seed).faults
    assert set(met) == set(Fault)
    one, two = simulate(7), simulate(7)
    assert (one.attempts, one.end_s) == (two.attempts, two.end_s)
