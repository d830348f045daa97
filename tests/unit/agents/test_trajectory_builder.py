"""Trajectories: whatever is added in whatever order, what is written is valid ATIF 1.8."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cloche.agents.atif import AgentInfo, Metrics, Observation, ObservationResult, Step, ToolCall, Trajectory
from cloche.agents.trajectory import TrajectoryBuilder, clean_text
from cloche.agents.usage import TokenCounts, UsageMeter
from cloche.core.errors import InvalidInput

# any text a model can send as JSON, half surrogate pairs too
TEXT = st.text(st.characters(codec=None), max_size=40)
CLEAN = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | CLEAN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CLEAN, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.builds(
        ToolCall,
        tool_call_id=CLEAN,
        function_name=CLEAN,
        arguments=st.dictionaries(CLEAN, VALUES, max_size=3),
    ),
    max_size=3,
    unique_by=lambda call: call.tool_call_id,
)
COUNTS = st.none() | st.builds(
    TokenCounts,
    prompt_tokens=st.integers(0, 10**9),
    completion_tokens=st.integers(0, 10**9),
    cached_tokens=st.none() | st.integers(0, 10**9),
)
EVENTS = st.lists(
    st.tuples(st.just("system"), TEXT)
    | st.tuples(st.just("user"), TEXT)
    | st.tuples(st.just("agent"), TEXT, CALLS, st.none() | TEXT, COUNTS, st.booleans())
    | st.tuples(st.just("dispatch"), TEXT, CALLS, st.booleans()),
    min_size=1,
    max_size=8,
)

# the keys that the format knows, by object; written down here a second time on purpose
KEYS = {
    "root": {
        "schema_version",
        "session_id",
        "trajectory_id",
        "agent",
        "steps",
        "notes",
        "final_metrics",
        "extra",
    },
    "agent": {"name", "version", "model_name", "tool_definitions", "extra"},
    "step": {
        "step_id",
        "timestamp",
        "source",
        "model_name",
        "message",
        "reasoning_content",
        "tool_calls",
        "observation",
        "metrics",
        "llm_call_count",
        "extra",
    },
    "call": {"tool_call_id", "function_name", "arguments", "extra"},
    "result": {"source_call_id", "content", "extra"},
    "metrics": {"prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "extra"},
    "final": {
        "total_prompt_tokens",
        "total_completion_tokens",
        "total_cached_tokens",
        "total_cost_usd",
        "total_steps",
        "extra",
    },
}
AGENT_ONLY = {"model_name", "reasoning_content", "tool_calls", "metrics"}


def new_builder() -> TrajectoryBuilder:
    return TrajectoryBuilder(agent_name="loop", agent_version="1", session_id="trial-1", model_name="m")


def play(builder: TrajectoryBuilder, events: list[tuple[Any, ...]]) -> UsageMeter:
    meter = UsageMeter()
    for event in events:
        match event:
            case ("system", text):
                builder.add_system(text)
            case ("user", text):
                builder.add_user(text)
            case ("agent", text, calls, reasoning, counts, answered):
                meter.begin_call()
                meter.settle_call(counts)
                step = builder.add_agent(
                    text, calls=calls, reasoning=reasoning, counts=counts, model_name="m"
                )
                if answered:
                    builder.add_results(step, {call.tool_call_id: text for call in calls})
            case ("dispatch", text, calls, answered):
                step = builder.add_agent(text, calls=calls, model_calls=0)
                if answered:
                    builder.add_results(step, {call.tool_call_id: text for call in calls})
    return meter


def check_rules(document: dict[str, Any]) -> None:
    """The format's rules, stated without our models."""
    assert set(document) <= KEYS["root"]
    assert document["schema_version"] == "ATIF-v1.8"
    assert set(document["agent"]) <= KEYS["agent"]
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    for step in document["steps"]:
        assert set(step) <= KEYS["step"]
        assert step["source"] in {"system", "user", "agent"}
        datetime.fromisoformat(step["timestamp"])
        assert step["source"] == "agent" or not set(step) & AGENT_ONLY
        assert step.get("llm_call_count") != 0 or not set(step) & {"metrics", "reasoning_content"}
        calls = step.get("tool_calls", [])
        assert all(set(call) <= KEYS["call"] and isinstance(call["arguments"], dict) for call in calls)
        ids = [call["tool_call_id"] for call in calls]
        assert len(ids) == len(set(ids))
        for result in step.get("observation", {"results": []})["results"]:
            assert set(result) <= KEYS["result"]
            assert result["source_call_id"] in ids
        assert set(step.get("metrics", {})) <= KEYS["metrics"]
    assert set(document["final_metrics"]) <= KEYS["final"]
    assert document["final_metrics"]["total_steps"] == len(document["steps"])


@given(EVENTS)
def test_every_run_is_valid(events: list[tuple[Any, ...]]) -> None:
    builder = new_builder()
    meter = play(builder, events)
    text = builder.build(meter, notes="n").model_dump_json(exclude_none=True)
    text.encode("utf-8")
    document = json.loads(text)
    check_rules(document)
    assert json.loads(Trajectory.model_validate_json(text).model_dump_json(exclude_none=True)) == document


@given(EVENTS)
def test_tokens_are_the_meters_or_left_out(events: list[tuple[Any, ...]]) -> None:
    builder = new_builder()
    meter = play(builder, events)
    final = json.loads(builder.build(meter).model_dump_json(exclude_none=True))["final_metrics"]
    total = meter.total()
    if total is None or total.input_tokens is None:
        assert "total_prompt_tokens" not in final
        assert "total_completion_tokens" not in final
    else:
        assert final["total_prompt_tokens"] == total.input_tokens
        assert final["total_completion_tokens"] == total.output_tokens
    assert ("extra" in final) == bool(meter.uncounted_calls)


@given(st.dictionaries(CLEAN, VALUES, max_size=4))
def test_arguments_are_kept_as_they_are_nulls_too(arguments: dict[str, Any]) -> None:
    builder = new_builder()
    builder.add_agent("", calls=[ToolCall(tool_call_id="c", function_name="f", arguments=arguments)])
    document = json.loads(builder.build(UsageMeter()).model_dump_json(exclude_none=True))
    assert document["steps"][0]["tool_calls"][0]["arguments"] == arguments


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert clean_text("a\ud800b") == "a\ufffdb"
    assert clean_text("\ud83d\ude00") == "\U0001f600"


def test_two_calls_of_one_id_are_refused() -> None:
    call = ToolCall(tool_call_id="c", function_name="f", arguments={})
    with pytest.raises(ValidationError, match="share an id"):
        new_builder().add_agent("", calls=[call, call])


def test_a_result_of_no_call_is_refused_and_changes_nothing() -> None:
    builder = new_builder()
    step = builder.add_agent("", calls=[ToolCall(tool_call_id="c", function_name="f", arguments={})])
    with pytest.raises(ValidationError, match="a call that the step did not make"):
        builder.add_results(step, {"d": "x"})
    assert builder.steps[0].observation is None


def test_a_result_that_names_a_call_of_another_step_is_refused() -> None:
    builder = new_builder()
    builder.add_agent("", calls=[ToolCall(tool_call_id="one", function_name="f", arguments={})])
    second = builder.add_agent("", calls=[ToolCall(tool_call_id="two", function_name="f", arguments={})])
    with pytest.raises(ValidationError):
        builder.add_results(second, {"one": "x"})


@pytest.mark.parametrize("field", ["model_name", "reasoning_content", "tool_calls", "metrics"])
def test_only_agents_carry_what_agents_do(field: str) -> None:
    values: dict[str, Any] = {
        "model_name": "m",
        "reasoning_content": "r",
        "tool_calls": [],
        "metrics": Metrics(),
    }
    with pytest.raises(ValidationError, match="only agent steps"):
        Step(step_id=1, source="user", message="", **{field: values[field]})


def test_without_a_model_call_nothing_is_measured() -> None:
    with pytest.raises(ValidationError, match="without a model call"):
        Step(step_id=1, source="agent", message="", llm_call_count=0, metrics=Metrics(prompt_tokens=1))


def test_steps_with_a_gap_are_refused() -> None:
    steps = [Step(step_id=1, source="user", message=""), Step(step_id=3, source="user", message="")]
    with pytest.raises(ValidationError, match="without gaps"):
        Trajectory(agent=AgentInfo(name="a", version="1"), steps=steps)


@pytest.mark.parametrize(
    "model", [AgentInfo, Metrics, Observation, ObservationResult, Step, ToolCall, Trajectory]
)
def test_unknown_keys_are_refused(model: Any) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        model.model_validate({"surprise": 1})


def test_it_is_written_whole(tmp_path: Path) -> None:
    builder = new_builder()
    builder.add_user("Grüße")
    path = tmp_path / "trajectory.json"
    assert builder.write(path, UsageMeter()) is True
    check_rules(json.loads(path.read_text(encoding="utf-8")))
    assert [item.name for item in tmp_path.iterdir()] == ["trajectory.json"]


def test_without_a_step_no_file_is_written(tmp_path: Path) -> None:
    builder = new_builder()
    assert builder.write(tmp_path / "trajectory.json", UsageMeter()) is False
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput):
        builder.build(UsageMeter())


@pytest.mark.fault("trajectory-write-fails")
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = new_builder()
    builder.add_user("one")
    path = tmp_path / "trajectory.json"
    builder.write(path, UsageMeter())
    before = path.read_bytes()
    builder.add_user("two")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cloche.agents.trajectory.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        builder.write(path, UsageMeter())
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["trajectory.json"]
