"""The scripts that the demo uses: each belongs to one example task, and to no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.agents.tools import TOOLS
from cloche.testing.model_server import load_scripts

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# tasks about the format rather than the work: no model is scripted for them
UNSCRIPTED = {
    "healthy-service",
    "keep-artifacts",
    "quiet-phase",
    "second-opinion",
    "side-service",
    "staged-release",
}
TASKS = sorted({path.parent.name for path in (EXAMPLES / "tasks").glob("*/task.toml")} - UNSCRIPTED)
SCRIPTS = load_scripts(EXAMPLES / "scripts")
TOOL_PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@pytest.mark.parametrize("model", ["scripted-a", "scripted-b"])
def test_each_model_knows_each_task(model: str) -> None:
    assert [script.name for script in SCRIPTS if script.model == model] == TASKS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.model}-{script.name}")
def test_a_script_matches_its_own_task_alone(script) -> None:  # type: ignore[no-untyped-def]
    matching = [
        name for name in TASKS if script.match in (EXAMPLES / "tasks" / name / "instruction.md").read_text()
    ]
    assert matching == [script.name]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.model}-{script.name}")
def test_a_script_uses_the_tools_that_there_are_and_ends(script) -> None:  # type: ignore[no-untyped-def]
    for turn in script.turns:
        for call in turn.calls:
            parameters = TOOL_PARAMETERS[call.name]
            assert set(parameters["required"]) <= set(call.arguments) <= set(parameters["properties"])
    assert [bool(turn.calls) for turn in script.turns] == [True] * (len(script.turns) - 1) + [False]


def test_they_show_parallel_calls() -> None:
    assert any(len(turn.calls) > 1 for script in SCRIPTS for turn in script.turns)
