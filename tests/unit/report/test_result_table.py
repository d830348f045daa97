"""The result table: what stands in each cell, how it fits a terminal, what is said below it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from cloche.core.errors import Domain
from cloche.core.failures import FAILURES, failure
from cloche.core.outcome import AttemptOutcome, StepOutcome, TrialOutcome, Usage
from cloche.report.closing import print_report
from cloche.report.summary import Column, summarise
from cloche.report.table import fit, print_table
from cloche.report.words import (
    cell_words,
    closing_line,
    cost_notes,
    hint_line,
    missing_lines,
    solved_words,
    timeout_notes,
    total_rows,
)


def _trial(
    task: str = "csv",
    agent: str = "loop",
    model: str | None = "m",
    repeat: int = 1,
    *,
    reward: float | None = None,
    code: str | None = None,
    attempts: int = 1,
    **more: Any,
) -> TrialOutcome:
    last = {
        "rewards": None if reward is None else {"reward": reward},
        "failure": failure(code, "it broke") if code else None,
        "usage": more.pop("usage", None),
        "steps": more.pop("steps", None),
    }
    lost = [
        AttemptOutcome(number=n, started_at=0, finished_at=1, failure=failure("infra/sandbox_lost"))
        for n in range(1, attempts)
    ]
    final = AttemptOutcome(number=attempts, started_at=0.0, finished_at=2.0, **last)
    made = () if "refusal" in more or attempts == 0 else (*lost, final)
    return TrialOutcome(
        name=f"{task}{agent}{model}{repeat}",
        task=task,
        agent=agent,
        model=model,
        repeat=repeat,
        attempts=made,
        **more,
    )


USAGE = Usage(input_tokens=41_203, cached_tokens=0, output_tokens=3_118, cost_usd=0.018, model_calls=9)
DEMO = [
    *[_trial(task, "oracle", None, reward=1.0) for task in ("csv", "log")],
    *[_trial(task, "nop", None, reward=0.0) for task in ("csv", "log")],
    _trial("csv", "loop", "a", reward=1.0, usage=USAGE, steps=6),
    _trial("log", "loop", "a", reward=0.0, usage=USAGE, steps=8),
    _trial(
        "csv", "loop", "b", reward=1.0, usage=Usage(input_tokens=5, output_tokens=2, model_calls=1), steps=1
    ),
    _trial("log", "loop", "b", code="infra/model_rate_limit", attempts=2),
]


def _print(trials: list[TrialOutcome], width: int = 80, **more: Any) -> str:
    out = io.StringIO()
    print_table(Console(file=out, width=width, **more), summarise(trials))
    return out.getvalue()


@pytest.mark.parametrize(
    ("trials", "text", "tone"),
    [
        ([_trial(reward=1.0)], "● 1/1", "good"),
        ([_trial(reward=0.0)], "○ 0/1", "bad"),
        ([_trial(reward=1.0), _trial(repeat=2, reward=0.0)], "◐ 1/2", "mixed"),
        ([_trial(reward=1.0), _trial(repeat=2, code="infra/image")], "● 1/1 ◌ 1", "good"),
        ([_trial(code="infra/image")], "◌ infra/image", "missing"),
        ([_trial(code="infra/image", attempts=2)], "◌ infra/image (2 attempts)", "missing"),
        (
            [_trial(code="infra/image"), _trial(repeat=2, code="infra/image")],
            "◌ infra/image (2 attempts) ×2",
            "missing",
        ),
        ([_trial(refusal=failure("plan/gpu"))], "◌ plan/gpu", "missing"),
        ([_trial(attempts=0)], "◌ not run", "missing"),
        ([_trial(code="agent/timeout", reward=0.0)], "○ 0/1", "bad"),
        ([_trial(code="agent/timeout", reward=1.0)], "● 1/1", "good"),
    ],
)
def test_cells(trials: list[TrialOutcome], text: str, tone: str) -> None:
    summary = summarise(trials)
    words = cell_words(summary.cells["csv", Column("loop", "m")])
    assert (words.text, words.tone) == (text, tone)


def test_a_cell_without_trials_is_a_dash() -> None:
    assert cell_words(None).text == "–"


def test_a_trial_without_a_verdict_is_in_no_rate() -> None:
    summary = summarise(DEMO)
    column = summary.totals[Column("loop", "b")]
    assert (column.trials, column.graded, column.solved, column.attempts) == (2, 1, 1, 3)
    assert solved_words(column) == "1/1"
    assert summary.without_verdict == 1
    assert summary.by_domain == {Domain.INFRA: 1}


def test_totals_say_unknown_and_dash_where_they_must() -> None:
    rows = dict(total_rows(summarise(DEMO)))
    assert rows["solved"] == ["2/2", "0/2", "1/2 50 % [9–91]", "1/1"]
    assert rows["tokens in / out"] == ["–", "–", "82,406 / 6,236", "5 / 2"]
    assert rows["cost"] == ["–", "–", "$0.036", "unknown (no price for b)"]
    assert rows["median steps"] == ["–", "–", "7", "1"]
    assert rows["median wall"] == ["2.0 s", "2.0 s", "2.0 s", "2.0 s"]


def test_the_table_in_plain_text() -> None:
    lines = _print(DEMO, width=120).splitlines()
    assert lines[0].split() == ["task", "oracle", "nop", "loop·a", "loop·b"]
    assert re.split(r"\s{2,}", lines[1].strip()) == ["csv", "● 1/1", "○ 0/1", "● 1/1", "● 1/1"]
    assert "◌ infra/model_rate_limit (2 attempts)" in lines[2]
    assert " ◌ log loop·b #1: it broke  [infra/model_rate_limit] (2 attempts)" in lines
    assert "\x1b" not in "\n".join(lines)


def test_colour_only_repeats_what_the_symbols_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = _print(DEMO, force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == _print(DEMO)


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", _print(DEMO, force_terminal=True))


names = st.text("abcdefghij-", min_size=1, max_size=24)


@given(
    st.lists(names, min_size=1, max_size=4, unique=True),
    st.lists(names, min_size=1, max_size=8, unique=True),
    st.lists(st.none() | st.sampled_from(sorted(FAILURES)), min_size=32, max_size=32),
    st.integers(40, 160),
)
def test_no_figure_is_cut_and_blocks_fit(
    tasks: list[str], models: list[str], codes: list[str | None], width: int
) -> None:
    cells = [(task, model) for task in tasks for model in models]
    trials = [
        _trial(task, "loop", model, code=code, reward=None if code else 1.0)
        for (task, model), code in zip(cells, codes, strict=False)
    ]
    summary = summarise(trials)
    layout, groups = fit(summary, width)
    assert [index for group in groups for index in group] == list(range(len(models)))
    out = _print(trials, width=width)
    table = out.split("\n\n")[: len(groups)]
    for block, group in zip(table, groups, strict=True):
        if len(group) > 1:
            assert max(map(cell_len, block.splitlines())) <= width
        for index in group:
            for words in layout.columns[index]:
                assert words.text in block


def test_what_is_missing_is_listed_up_to_a_limit() -> None:
    reasons = [failure("plan/gpu", f"task {n} asks for a GPU") for n in range(1, 30)]
    trials = [_trial(f"t{n}", refusal=reason) for n, reason in enumerate([*reasons, reasons[-1]])]
    lines = missing_lines(trials)
    assert len(lines) == 21
    assert lines[-1] == "… and 10 more"


def test_a_cost_that_is_unknown_says_what_to_do() -> None:
    assert cost_notes(summarise(DEMO)) == [
        "cost of b is unknown: give its price with --price b=IN/OUT (US$ per million tokens)"
    ]


def test_the_closing_line_accounts_for_every_trial() -> None:
    trials = [
        *DEMO,
        _trial("x", "oracle", None, refusal=failure("plan/gpu")),
        _trial("y", "oracle", None, code="verifier/reward_missing"),
        _trial("z", "oracle", None, attempts=0),
    ]
    assert closing_line(summarise(trials), sandboxes_left=0, seconds=11.42) == (
        "11 trials · 7 graded · 1 infrastructure · 1 user · 1 verifier · 1 not run · 10 attempts · "
        "0 sandboxes left · 11.4 s"
    )


def test_sandboxes_that_nobody_counted_are_not_said_to_be_none() -> None:
    assert "left" not in closing_line(summarise(DEMO), sandboxes_left=None, seconds=None)


def test_hints() -> None:
    assert hint_line(summarise(DEMO[:3]), 0) is None
    one = hint_line(summarise(DEMO), 3)
    assert (
        one
        == "1 trial has no verdict; `cloche run` on the same folder tries again what has none (exit code 3)"
    )
    stopped = hint_line(summarise(DEMO), 130)
    assert stopped is not None
    assert stopped.startswith("interrupted, 1 trial has no verdict")


def test_the_last_screen() -> None:
    out = io.StringIO()
    print_report(
        Console(file=out, width=80),
        summarise(DEMO),
        folder="runs/x",
        status=3,
        sandboxes_left=2,
        seconds=1.0,
    )
    last = out.getvalue().splitlines()[-4:]
    assert last[0].startswith(" 8 trials · 7 graded · 1 infrastructure · 9 attempts · 2 sandboxes left")
    assert last[1] == " record: runs/x   open it: cloche report runs/x"
    assert last[2] == " hint: cloche sandbox reap removes what is left"
    assert "exit code 3" in last[3]


def test_what_never_got_a_verdict_is_in_no_median() -> None:
    trials = [_trial(reward=1.0, steps=4), *[_trial(repeat=n, code="infra/image", steps=90) for n in (2, 3)]]
    slow = [replace(trial.attempts[0], finished_at=1000.0) for trial in trials[1:]]
    lost = [replace(trial, attempts=(attempt,)) for trial, attempt in zip(trials[1:], slow, strict=True)]
    whole = summarise([trials[0], *lost]).whole
    assert (whole.wall_s, whole.steps) == (2.0, 4)
    assert summarise(lost).whole.wall_s is None


def test_failures_that_are_alike_are_one_line_with_a_hint() -> None:
    trials = [_trial(repeat=n, code="infra/model_connection") for n in range(1, 27)]
    lines = missing_lines([*trials, _trial("log", code="infra/image")])
    assert lines == [
        "◌ csv loop·m #1: it broke  [infra/model_connection] … and 25 more like it",
        "◌ log loop·m #1: it broke  [infra/image]",
        "hint: check that the model's server runs, and that --base-url is its address",
    ]


def test_agents_that_ran_out_of_time_are_told_when_they_were_graded() -> None:
    late = [_trial(repeat=n, code="agent/timeout", reward=0.0) for n in (1, 2)]
    ungraded = _trial(repeat=3, code="agent/timeout")
    assert "2 agents ran out of time and were graded" in _print([*late, ungraded])
    assert timeout_notes([late[0]]) == ["1 agent ran out of time and was graded"]
    assert timeout_notes([ungraded, *DEMO]) == []


def test_a_step_that_ran_out_of_time_counts_once() -> None:
    steps = tuple(StepOutcome(name=name, failure=failure("agent/timeout")) for name in "ab")
    trial = _trial(reward=0.5)
    trial = replace(trial, attempts=(replace(trial.attempts[0], step_outcomes=steps),))
    assert timeout_notes([trial]) == ["1 agent ran out of time and was graded"]
