"""Writing down what an agent does, step by step, as ``trajectory.json`` in the format of ``atif``.

Steps are checked as they are added, so that a run which is stopped at any point leaves a valid record.
Must never invent a figure: a count that is not known is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cloche.agents.atif import (
    AgentInfo,
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Trajectory,
)
from cloche.agents.clock import Clock, SystemClock
from cloche.agents.usage import TokenCounts, UsageMeter
from cloche.core.errors import InvalidInput


def clean_text(text: str) -> str:
    """Return ``text`` with U+FFFD for half surrogate pairs, which JSON can carry and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class TrajectoryBuilder:
    """The growing trajectory of one attempt.

    ``session_id`` names the attempt. ``model_name`` is what the agent asks by default. Every ``add_…``
    returns the step's id, from 1.
    """

    def __init__(
        self,
        *,
        agent_name: str,
        agent_version: str,
        session_id: str,
        model_name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._agent = AgentInfo(name=agent_name, version=agent_version, model_name=model_name)
        self._session_id = session_id
        self._clock: Clock = clock or SystemClock()
        self._steps: list[Step] = []

    @property
    def steps(self) -> Sequence[Step]:
        """The steps so far."""
        return tuple(self._steps)

    @property
    def agent_steps(self) -> int:
        """How many of the steps are the agent's."""
        return sum(step.source == "agent" for step in self._steps)

    def set_tools(self, definitions: Iterable[Mapping[str, Any]]) -> None:
        """Say which tools the model is offered, in OpenAI's function schema."""
        self._agent.tool_definitions = [dict(definition) for definition in definitions]

    def add_system(self, message: str) -> int:
        """Add what the model is told about its role."""
        return self._add(Step(**self._head(), source="system", message=clean_text(message)))

    def add_user(self, message: str) -> int:
        """Add what the agent is asked to do."""
        return self._add(Step(**self._head(), source="user", message=clean_text(message)))

    def add_agent(
        self,
        message: str,
        *,
        calls: Iterable[ToolCall] = (),
        reasoning: str | None = None,
        model_name: str | None = None,
        counts: TokenCounts | None = None,
        model_calls: int = 1,
    ) -> int:
        """Add what the agent said and which calls it made, before they are carried out.

        ``counts`` is ``None`` when the endpoint did not count, or when ``model_calls`` is 0. Raises
        pydantic's ValidationError for what the format forbids (two calls of one id, say).
        """
        metrics = None
        if counts is not None:
            metrics = Metrics(
                prompt_tokens=counts.prompt_tokens,
                completion_tokens=counts.completion_tokens,
                cached_tokens=counts.cached_tokens,
            )
        step = Step(
            **self._head(),
            source="agent",
            message=clean_text(message),
            reasoning_content=None if reasoning is None else clean_text(reasoning),
            model_name=model_name,
            tool_calls=list(calls) or None,
            metrics=metrics,
            llm_call_count=model_calls,
        )
        return self._add(step)

    def add_results(self, step_id: int, results: Mapping[str, str]) -> None:
        """Add what came of a step's calls, by the calls' ids. Raises ValidationError for an unknown id."""
        step = self._steps[step_id - 1]
        observed = [
            ObservationResult(source_call_id=call_id, content=clean_text(content))
            for call_id, content in results.items()
        ]
        self._steps[step_id - 1] = Step.model_validate(
            {**step.__dict__, "observation": Observation(results=observed)}
        )

    def build(
        self, usage: UsageMeter, *, cost_usd: float | None = None, notes: str | None = None
    ) -> Trajectory:
        """Return the trajectory as it stands. Raises InvalidInput without any step: there is no such."""
        if not self._steps:
            raise InvalidInput("a trajectory needs at least one step")
        return Trajectory(
            session_id=self._session_id,
            trajectory_id=self._session_id,
            agent=self._agent,
            steps=self._steps,
            notes=notes,
            final_metrics=self._final_metrics(usage, cost_usd),
        )

    def write(
        self, path: Path, usage: UsageMeter, *, cost_usd: float | None = None, notes: str | None = None
    ) -> bool:
        """Write it to ``path``, whole or not at all; ``False``, and no file, if there is no step yet.

        Blocks for as long as the disk takes. Raises OSError.
        """
        if not self._steps:
            return False
        text = self.build(usage, cost_usd=cost_usd, notes=notes).model_dump_json(exclude_none=True)
        part = path.with_name(f".{path.name}.part")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return True

    def _head(self) -> dict[str, Any]:
        now: datetime = self._clock.now()
        return {"step_id": len(self._steps) + 1, "timestamp": now}

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        return step.step_id

    def _final_metrics(self, usage: UsageMeter, cost_usd: float | None) -> FinalMetrics:
        total = usage.total()
        extra: dict[str, Any] | None = None
        if usage.uncounted_calls:
            extra = {
                "uncounted_calls": usage.uncounted_calls,
                "counted_prompt_tokens": usage.counted_prompt_tokens,
                "counted_completion_tokens": usage.counted_completion_tokens,
            }
        return FinalMetrics(
            total_prompt_tokens=total.input_tokens if total else None,
            total_completion_tokens=total.output_tokens if total else None,
            total_cached_tokens=total.cached_tokens if total else None,
            total_cost_usd=cost_usd,
            total_steps=len(self._steps),
            extra=extra,
        )
