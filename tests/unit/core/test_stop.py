"""What signals mean for a run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloche.core.schedule import Stop, after_interrupt, after_terminate


def test_ctrl_c_once_drains_twice_cancels_three_times_kills() -> None:
    stops = [Stop.RUNNING]
    for _ in range(4):
        stops.append(after_interrupt(stops[-1]))
    assert stops[1:] == [Stop.DRAINING, Stop.CANCELLING, Stop.KILLING, Stop.KILLING]


@given(st.sampled_from(Stop))
def test_a_signal_never_takes_a_step_back(stop: Stop) -> None:
    assert after_interrupt(stop) >= stop
    assert after_terminate(stop) >= max(stop, Stop.CANCELLING)


def test_a_second_term_kills() -> None:
    assert after_terminate(Stop.DRAINING) is Stop.CANCELLING
    assert after_terminate(Stop.CANCELLING) is Stop.KILLING
