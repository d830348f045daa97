"""Running totals, and what is shown of them while a run goes on."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from cloche.core.failures import failure
from cloche.core.outcome import AttemptOutcome, TrialOutcome, Usage
from cloche.core.schedule import Stop
from cloche.report.live import LiveView
from cloche.report.progress import Progress, bar, plain_line, record, state_line, view


def _trial(
    *, reward: float | None = None, code: str | None = None, usage: Usage | None = None
) -> TrialOutcome:
    attempt = AttemptOutcome(
        number=1,
        started_at=0,
        finished_at=1,
        rewards=None if reward is None else {"reward": reward},
        failure=failure(code) if code else None,
        usage=usage,
    )
    return TrialOutcome(name="t", task="t", agent="a", model=None, repeat=1, attempts=(attempt,))


def test_totals() -> None:
    progress = Progress(total=10)
    for trial in (
        _trial(reward=1.0),
        _trial(reward=0.0),
        _trial(code="infra/model"),
        _trial(code="verifier/reward_empty"),
    ):
        progress.add(trial)
    progress.running = 2
    assert (progress.done, progress.graded, progress.solved) == (4, 2, 1)
    assert (progress.infra, progress.other, progress.queued) == (1, 1, 4)
    shown = "\n".join(view(progress, 8.0))
    assert "10 trials" in shown
    assert "4 done · 2 running · 4 queued" in shown
    assert "solved 1/2 50 %" in shown
    assert "infra 1 (25.0 %)" in shown
    assert "1 otherwise without verdict" in shown
    assert "ETA 12.0 s" in shown
    assert "tokens" not in shown


def test_tokens_and_cost_stay_unknown_once_they_are() -> None:
    progress = Progress(total=3)
    known = Usage(input_tokens=10, output_tokens=5, cost_usd=0.5, model_calls=1)
    progress.add(_trial(reward=1.0, usage=known))
    assert "tokens 10 in / 5 out   $0.50" in "\n".join(view(progress, 1.0))
    progress.add(_trial(reward=1.0, usage=Usage(model_calls=1)))
    progress.add(_trial(reward=1.0, usage=known))
    assert "tokens unknown in / unknown out   cost unknown" in "\n".join(view(progress, 1.0))


def test_trials_of_an_earlier_run_count_but_not_for_the_estimate() -> None:
    progress = Progress(total=4)
    progress.add(_trial(reward=1.0), fresh=False)
    assert progress.eta_s(10.0) is None
    progress.add(_trial(reward=1.0))
    assert progress.eta_s(10.0) == 20.0
    progress.add(_trial(reward=1.0))
    progress.add(_trial(reward=1.0))
    assert progress.eta_s(10.0) is None


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_a_bar_is_full_only_when_all_is_done(a: int, b: int) -> None:
    done, total = sorted((a, b))
    drawn = bar(done, total)
    assert len(drawn) == 18
    assert (drawn == "█" * 18) == (done == total)


def test_waiting_and_stopping_are_said() -> None:
    progress = Progress(total=4, waiting=2)
    assert "(2 waiting to be tried again)" in state_line(progress)
    progress.stop = Stop.DRAINING
    assert view(progress, 1.0)[-1].startswith("draining")
    progress.stop = Stop.RUNNING
    progress.preparing = "preparing the images of 3 tasks"
    assert view(progress, 1.0)[-1] == "preparing the images of 3 tasks"


def test_one_line_and_one_record() -> None:
    progress = Progress(total=2, running=1)
    progress.add(_trial(reward=1.0))
    line = plain_line(progress, 3.0)
    assert "\n" not in line
    assert line.startswith("3.0 s: 1 done · 1 running · 0 queued; solved 1/1")
    data = record(progress, 3.0)
    assert (data["done"], data["solved"], data["stop"], data["elapsed_s"]) == (1, 1, "running", 3.0)


def test_the_live_view_is_gone_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with LiveView(console, Progress(total=3), lambda: 0.0):
        pass
    text = out.getvalue()
    assert "3 trials" in text
    assert text.rstrip().endswith("\x1b[2K") or "\x1b[1A\x1b[2K" in text


def test_the_view_of_a_large_run_fits_a_wide_terminal() -> None:
    progress = Progress(total=12_000, done=6_214, running=512, graded=6_190, solved=3_402, infra=24)
    assert all(cell_len(line) <= 120 for line in view(progress, 100.0))
