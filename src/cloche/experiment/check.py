"""Whether tasks are sound: the reference solution scores 1 and doing nothing scores 0, time after time.

Must never call a task sound that was refused, or whose trials have no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cloche.core.outcome import SOLVED_AT, TrialOutcome

AGENTS = ("oracle", "nop")
_SLACK = 1e-9


@dataclass(slots=True, kw_only=True)
class Check:
    """What the trials of one task say: its rewards by agent, and every reason why it is not sound."""

    task: str
    rewards: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether it is as a task should be."""
        return not self.problems


def checks(outcomes: Iterable[TrialOutcome], repeats: int) -> list[Check]:
    """Return one check per task, in the order of their trials. Expects ``repeats`` trials of each agent."""
    found: dict[str, Check] = {}
    for trial in outcomes:
        check = found.setdefault(trial.task, Check(task=trial.task))
        problem = _problem(trial)
        if problem and problem not in check.problems:
            check.problems.append(problem)
        if trial.graded and trial.last is not None and trial.last.rewards is not None:
            check.rewards.setdefault(trial.agent, []).append(reward_of(trial.last.rewards))
    for check in found.values():
        _complete(check, repeats)
    return list(found.values())


def reward_of(rewards: Mapping[str, float]) -> float:
    """Return the one number of several rewards: that called ``reward``, else the mean of all."""
    if "reward" in rewards:
        return rewards["reward"]
    return sum(rewards.values()) / len(rewards) if rewards else 0.0


def _problem(trial: TrialOutcome) -> str:
    if trial.failure is not None:
        return f"{trial.agent} #{trial.repeat}: {trial.failure.message} [{trial.failure.code}]"
    if not trial.graded or trial.last is None or trial.last.rewards is None:
        return f"{trial.agent} #{trial.repeat}: no verdict"
    reward = reward_of(trial.last.rewards)
    if trial.agent == "oracle" and reward < SOLVED_AT - _SLACK:
        return f"the reference solution scores {reward:g}, not 1 (#{trial.repeat})"
    if trial.agent == "nop" and abs(reward) > _SLACK:
        return f"doing nothing scores {reward:g}, not 0 (#{trial.repeat})"
    return ""


def _complete(check: Check, repeats: int) -> None:
    for agent in AGENTS:
        if not check.problems and len(check.rewards.get(agent, ())) != repeats:
            check.problems.append(f"{agent} has {len(check.rewards.get(agent, ()))} of {repeats} verdicts")


def line(check: Check) -> str:
    """Return what a check says in one line."""

    def shown(agent: str) -> str:
        rewards: Sequence[float] = check.rewards.get(agent, ())
        values = sorted(set(rewards))
        return f"{agent} {'/'.join(f'{value:g}' for value in values) or '-'} ×{len(rewards)}"

    return f"{'sound' if check.sound else 'FAULTY':<7} {check.task:<28} {' · '.join(map(shown, AGENTS))}"
