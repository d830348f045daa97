"""Time limits of a trial's phases: ``min(the task's or an override, a maximum) × a multiplier``.

Pure. Must never let a phase without a limit of its own escape a maximum that was set for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cloche.tasks.model import Step, Task

SETUP_TIMEOUT_S = 360.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRule:
    """What a run says about one phase: instead of the task's limit, at most, and times what.

    A multiplier of the phase replaces the general one.
    """

    override_s: float | None = None
    max_s: float | None = None
    multiplier: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutRules:
    """What a run says about the time limits of all its tasks."""

    multiplier: float = 1.0
    start: PhaseRule = field(default_factory=PhaseRule)
    setup: PhaseRule = field(default_factory=PhaseRule)
    agent: PhaseRule = field(default_factory=PhaseRule)
    verifier: PhaseRule = field(default_factory=PhaseRule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds of each phase of one step, or of a task without steps; ``agent_s`` may be without limit.

    ``start_s`` bounds making the sandbox ready, and the setting up of each step; ``collect_s`` is what
    the commands that collect evidence may take together.
    """

    start_s: float
    setup_s: float
    agent_s: float | None
    verifier_s: float
    collect_s: float = 0.0

    @property
    def total_s(self) -> float | None:
        """All phases together, ``None`` if one has no limit."""
        if self.agent_s is None:
            return None
        return self.start_s + self.setup_s + self.agent_s + self.verifier_s + self.collect_s


def limit(base_s: float | None, rule: PhaseRule, multiplier: float) -> float | None:
    """Return the limit of one phase, ``None`` for none."""
    wanted_s = rule.override_s or base_s
    known = [seconds for seconds in (wanted_s, rule.max_s) if seconds is not None]
    if not known:
        return None
    return min(known) * (multiplier if rule.multiplier is None else rule.multiplier)


def timeouts(task: Task, rules: TimeoutRules | float, stage: Step | None = None) -> Timeouts:
    """Return the limits of a stage, by default the task's first; a number is the multiplier of them all."""
    if not isinstance(rules, TimeoutRules):
        rules = TimeoutRules(multiplier=rules)
    stage = stage or task.stages[0]
    general = rules.multiplier
    verifier_s = stage.verifier.timeout_s
    build_s = task.environment.build_timeout_s
    return Timeouts(
        start_s=limit(build_s, rules.start, general) or build_s,
        setup_s=limit(SETUP_TIMEOUT_S, rules.setup, general) or SETUP_TIMEOUT_S,
        agent_s=limit(stage.agent.timeout_s, rules.agent, general),
        verifier_s=limit(verifier_s, rules.verifier, general) or verifier_s,
        collect_s=sum(command.timeout_s for command in stage.verifier.collect),
    )


def total(limits: Sequence[Timeouts]) -> float | None:
    """Return how long a whole attempt may take, ``None`` if one of its agents has no limit."""
    parts = [each.total_s for each in limits]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
