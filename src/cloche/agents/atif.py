"""The Agent Trajectory Interchange Format, version 1.8, as far as it is written here: strict models.

Fields and rules: Harbor's RFC 0001 and its trajectory models (https://github.com/harbor-framework/harbor,
``rfcs/0001-trajectory-format.md``). Readers reject keys they do not know, so must never gain a field of our
own: what is ours goes into ``extra``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
Extra = dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class AgentInfo(_Strict):
    """Who acted, with which model and tools (OpenAI's function schema)."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: Extra | None = None


class ToolCall(_Strict):
    """One call that the agent made."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: Extra | None = None


class ObservationResult(_Strict):
    """What came of a call."""

    source_call_id: str | None = None
    content: str | None = None
    extra: Extra | None = None


class Observation(_Strict):
    """What came of a step's calls."""

    results: list[ObservationResult]


class Metrics(_Strict):
    """What one model call took; ``prompt_tokens`` include the cached ones. Absent means unknown."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    cost_usd: float | None = None
    extra: Extra | None = None


class FinalMetrics(_Strict):
    """What all steps together took. Absent means unknown."""

    total_prompt_tokens: Count | None = None
    total_completion_tokens: Count | None = None
    total_cached_tokens: Count | None = None
    total_cost_usd: float | None = None
    total_steps: Count | None = None
    extra: Extra | None = None


class Step(_Strict):
    """One step: something said by the system or the user, or something done by the agent.

    ``llm_call_count`` 0 marks what an agent did without a model.
    """

    step_id: Annotated[int, Field(ge=1)]
    timestamp: AwareDatetime | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    message: str
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    llm_call_count: Count | None = None
    extra: Extra | None = None

    @model_validator(mode="after")
    def _only_agents_act(self) -> Self:
        acts = ("model_name", "reasoning_content", "tool_calls", "metrics", "llm_call_count")
        if self.source != "agent" and any(getattr(self, name) is not None for name in acts):
            raise ValueError(f"a {self.source} step carries a field that only agent steps may carry")
        return self

    @model_validator(mode="after")
    def _without_a_model_nothing_is_measured(self) -> Self:
        if self.llm_call_count == 0 and (self.metrics is not None or self.reasoning_content is not None):
            raise ValueError("a step without a model call carries metrics or reasoning")
        return self

    @model_validator(mode="after")
    def _results_belong_to_calls(self) -> Self:
        ids = [call.tool_call_id for call in self.tool_calls or []]
        if len(set(ids)) != len(ids):
            raise ValueError("two calls of one step share an id")
        named = [result.source_call_id for result in self.observation.results] if self.observation else []
        if any(name is not None and name not in ids for name in named):
            raise ValueError("a result names a call that the step did not make")
        return self


class Trajectory(_Strict):
    """All of a run. ``session_id`` names the run, ``trajectory_id`` this document."""

    schema_version: Literal["ATIF-v1.8"] = "ATIF-v1.8"
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AgentInfo
    steps: Annotated[list[Step], Field(min_length=1)]
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    extra: Extra | None = None

    @model_validator(mode="after")
    def _steps_are_numbered(self) -> Self:
        if [step.step_id for step in self.steps] != list(range(1, len(self.steps) + 1)):
            raise ValueError("steps are not numbered 1, 2, 3 … without gaps")
        return self
