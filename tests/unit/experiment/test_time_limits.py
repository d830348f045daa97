"""Time limits: min(the task's or an override, a maximum) × a multiplier, phase by phase and step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.experiment.limits import PhaseRule, TimeoutRules, limit, timeouts, total
from cloche.tasks import load_task

MakeTask = Callable[..., Path]

STEPPED = """\
[agent]
timeout_sec = 30.0
[environment]
docker_image = "fake:1"
build_timeout_sec = 100.0
[[steps]]
name = "one"
[steps.verifier]
timeout_sec = 5.0
[[steps.verifier.collect]]
command = "x"
timeout_sec = 2.5
[[steps]]
name = "two"
[steps.agent]
timeout_sec = 7.0
"""


@pytest.mark.parametrize(
    ("base_s", "rule", "multiplier", "wanted_s"),
    [
        (10.0, PhaseRule(), 1.0, 10.0),
        (10.0, PhaseRule(), 2.0, 20.0),
        (10.0, PhaseRule(override_s=4.0), 2.0, 8.0),
        (10.0, PhaseRule(max_s=4.0), 2.0, 8.0),
        (10.0, PhaseRule(override_s=8.0, max_s=4.0, multiplier=0.5), 2.0, 2.0),
        (10.0, PhaseRule(multiplier=3.0), 2.0, 30.0),
        (None, PhaseRule(), 2.0, None),
        (None, PhaseRule(max_s=4.0), 2.0, 8.0),
        (None, PhaseRule(override_s=4.0), 1.0, 4.0),
    ],
)
def test_one_phase(base_s: float | None, rule: PhaseRule, multiplier: float, wanted_s: float | None) -> None:
    assert limit(base_s, rule, multiplier) == wanted_s


@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.floats(0.01, 100))
def test_a_maximum_always_holds(base_s: float, max_s: float, multiplier: float) -> None:
    found = limit(base_s, PhaseRule(max_s=max_s), multiplier)
    assert found is not None
    assert found <= max_s * multiplier


def test_each_step_has_its_own(make_task: MakeTask) -> None:
    files = {"steps__one__instruction.md": "x", "steps__two__instruction.md": "x", "instruction.md": None}
    task = load_task(make_task(toml=STEPPED, **files))
    rules = TimeoutRules(multiplier=2.0, setup=PhaseRule(override_s=1.0), start=PhaseRule(multiplier=1.0))
    one, two = (timeouts(task, rules, stage) for stage in task.stages)
    assert (one.start_s, one.setup_s, one.agent_s, one.verifier_s, one.collect_s) == (100, 2, 60, 10, 2.5)
    assert (two.agent_s, two.verifier_s, two.collect_s) == (14.0, 1200.0, 0.0)
    assert total([one, two]) == 100 + 2 + 60 + 10 + 2.5 + 100 + 2 + 14 + 1200


def test_without_a_limit_there_is_no_total(make_task: MakeTask) -> None:
    task = load_task(make_task(toml='[environment]\ndocker_image = "fake:1"\n'))
    assert total([timeouts(task, 1.0)]) is None
    assert total([timeouts(task, TimeoutRules(agent=PhaseRule(max_s=5.0)))]) is not None
