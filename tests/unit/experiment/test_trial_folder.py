"""A trial's folder: attempts are put away whole, and an interruption at any point loses none."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import InvalidInput
from cloche.core.failures import FAILURES, failure
from cloche.core.outcome import AttemptOutcome, Span, Usage
from cloche.experiment.record.attempt import (
    AttemptRecord,
    fill,
    outcome_of,
    public_url,
    stored_failure,
    when,
)
from cloche.experiment.record.trial import TrialFolder


def _record(number: int = 1) -> AttemptRecord:
    return AttemptRecord(
        trial="t",
        task="csv",
        agent="nop",
        repeat=1,
        number=number,
        sandbox_id=f"sb-{number}",
        started_at=when(10),
    )


def _attempt(folder: TrialFolder, number: int, *, finished: bool = True) -> None:
    folder.begin(_record(number), {"config.json": {"n": number}, "lock.json": {}})
    (folder.agent_dir / "log.txt").write_text(str(number))
    if finished:
        outcome = AttemptOutcome(
            number=number, started_at=10, finished_at=11, failure=failure("infra/sandbox_lost")
        )
        folder.write_attempt(fill(_record(number), outcome))
        folder.write_result({"n": number})


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


ONE = {"agent/log.txt", "attempt.json", "config.json", "lock.json", "result.json"}


def test_the_last_attempt_stands_at_the_top_and_earlier_ones_below(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "t")
    for number in (1, 2, 3):
        folder.put_away()
        _attempt(folder, number)
    below = {f"attempts/{number}/{name}" for number in (1, 2) for name in ONE}
    assert _files(folder.path) == ONE | below
    assert (folder.agent_dir / "log.txt").read_text() == "3"
    assert (folder.path / "attempts" / "1" / "agent" / "log.txt").read_text() == "1"
    assert [outcome.number for outcome in folder.outcomes()] == [1, 2, 3]


def test_putting_away_nothing_is_fine(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "t")
    folder.put_away()
    folder.clear_unfinished()
    assert folder.outcomes() == ()


@pytest.mark.parametrize("moves", range(8))
def test_a_move_interrupted_anywhere_is_finished_by_the_next(
    moves: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = TrialFolder(tmp_path_factory.mktemp("r") / "t")
    _attempt(folder, 1)
    left = moves
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return rename(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with contextlib.suppress(KeyboardInterrupt):
            folder.put_away()
    folder.finish_moving()
    folder.put_away()
    assert _files(folder.path) == {f"attempts/1/{name}" for name in ONE}
    _attempt(folder, 2)
    assert [outcome.number for outcome in folder.outcomes()] == [1, 2]


def test_files_that_no_attempt_claims_are_removed(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "t")
    _attempt(folder, 1)
    folder.put_away()
    (folder.path / "agent").mkdir()
    (folder.path / "agent" / "half").write_text("x")
    (folder.path / "config.json").write_text("{")
    folder.clear_unfinished()
    assert _files(folder.path) == {f"attempts/1/{name}" for name in ONE}


def test_an_attempt_without_an_end_is_the_runners_loss(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "t")
    _attempt(folder, 1, finished=False)
    (outcome,) = folder.outcomes()
    assert outcome.failure is not None
    assert outcome.failure.code == "infra/runner_lost"
    assert not outcome.graded
    assert outcome.sandbox_id == "sb-1"


def test_an_attempt_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "t")
    _attempt(folder, 1)
    (folder.path / "attempt.json").write_text('{"trial": "t"}')
    with pytest.raises(InvalidInput, match=r"attempt\.json: `task`: Field required"):
        folder.outcomes()


amounts = st.none() | st.integers(0, 10**12)
spans = st.builds(lambda at, length: Span(at, at + length), st.integers(0, 4 * 10**9), st.integers(0, 10**6))
outcomes = st.builds(
    AttemptOutcome,
    number=st.integers(1, 1000),
    started_at=st.integers(0, 4 * 10**9).map(float),
    finished_at=st.integers(0, 4 * 10**9).map(float),
    sandbox_id=st.just("sb-1"),
    failure=st.none() | st.sampled_from(sorted(FAILURES)).map(failure),
    rewards=st.none()
    | st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False, allow_infinity=False)),
    usage=st.none()
    | st.builds(
        Usage,
        input_tokens=amounts,
        cached_tokens=amounts,
        output_tokens=amounts,
        cost_usd=st.none() | st.floats(0, 1e6),
        model_calls=st.integers(0, 100),
    ),
    steps=st.none() | st.integers(0, 1000),
    phases=st.dictionaries(st.sampled_from(["agent_setup", "verifier"]), spans),
)


@given(outcomes)
def test_what_is_written_is_what_is_read(outcome: AttemptOutcome) -> None:
    first = _record(outcome.number).model_copy(update={"started_at": when(outcome.started_at)})
    record = fill(first, outcome)
    again = outcome_of(AttemptRecord.model_validate_json(record.model_dump_json()))
    assert again == outcome


def test_a_code_of_a_later_version_is_no_score() -> None:
    record = fill(
        _record(), AttemptOutcome(number=1, started_at=0, finished_at=1, failure=failure("agent/timeout"))
    )
    assert record.failure is not None
    newer = record.failure.model_copy(update={"code": "agent/of_the_future"})
    found = stored_failure(newer)
    assert found is not None
    assert found.code == "infra/unknown"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("https://joe:s3cret@host.example/v1?key=abc#x", "https://host.example/v1"),
        ("https://token@[::1]:80/v1", "https://[::1]:80/v1"),
    ],
)
def test_an_endpoint_is_recorded_without_credentials(url: str, shown: str) -> None:
    assert public_url(url) == shown
