"""What a trial and its attempts came to: plain data that the runner writes and the report reads.

Must never hold an open thing, and never turn an absent figure into 0: ``None`` means unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cloche.core.errors import Domain
from cloche.core.failures import Failure

SOLVED_AT = 1.0
_FLOAT_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and money of one attempt or of many. ``input_tokens`` include the cached ones.

    ``model_calls`` is how many requests were made, answered or not.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    model_calls: int = 0


def _sum_known(values: Iterable[float | None]) -> float | None:
    """Add up; unknown as soon as one is."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def add_usage(parts: Sequence[Usage]) -> Usage | None:
    """Return the sum, ``None`` for no parts. A figure that is unknown in one part is unknown in the sum."""
    if not parts:
        return None

    def tokens(values: Iterable[int | None]) -> int | None:
        total = _sum_known(values)
        return None if total is None else int(total)

    return Usage(
        input_tokens=tokens(part.input_tokens for part in parts),
        cached_tokens=tokens(part.cached_tokens for part in parts),
        output_tokens=tokens(part.output_tokens for part in parts),
        cost_usd=_sum_known(part.cost_usd for part in parts),
        model_calls=sum(part.model_calls for part in parts),
    )


@dataclass(frozen=True, slots=True)
class Span:
    """When a phase began and ended, in seconds since 1970."""

    started_at: float
    finished_at: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.finished_at - self.started_at


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What one step of a task in steps came to; the fields mean what they mean in ``AttemptOutcome``."""

    name: str
    failure: Failure | None = None
    rewards: Mapping[str, float] | None = None
    usage: Usage | None = None
    steps: int | None = None
    phases: Mapping[str, Span] = field(default_factory=dict)


def combine_rewards(
    steps: Sequence[Mapping[str, float] | None], *, final: bool = False
) -> dict[str, float] | None:
    """Return the reward of a task from those of its steps that were reached, ``None`` for none at all.

    The mean of each key over the steps that have a verdict, a missing key counting 0; or what the last
    step that was reached says.
    """
    if final:
        last = steps[-1] if steps else None
        return None if last is None else dict(last)
    graded = [rewards for rewards in steps if rewards is not None]
    keys = dict.fromkeys(key for rewards in graded for key in rewards)
    if not keys:
        return None
    return {key: sum(rewards.get(key, 0.0) for rewards in graded) / len(graded) for key in keys}


def missed(rewards: Mapping[str, float] | None, least: Mapping[str, float]) -> str | None:
    """Return the threshold that a step has missed, if any; a missing reward counts as minus infinity."""
    for key, threshold in least.items():
        value = (rewards or {}).get(key)
        if value is None or value < threshold:
            shown = "missing" if value is None else f"{value:g}"
            return f"{key} is {shown}, below {threshold:g}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """One try in one sandbox.

    ``phases``: ``environment_setup``, ``agent_setup``, ``agent_execution``, ``verifier``, ``collection``,
    ``cleanup``, as far as they were reached. ``usage`` is ``None`` when no model was asked. A task in steps
    has ``step_outcomes``, of the steps that were reached; their phases stand there.
    """

    number: int
    started_at: float
    finished_at: float
    sandbox_id: str = ""
    failure: Failure | None = None
    rewards: Mapping[str, float] | None = None
    usage: Usage | None = None
    steps: int | None = None
    phases: Mapping[str, Span] = field(default_factory=dict)
    step_outcomes: tuple[StepOutcome, ...] = ()

    @property
    def graded(self) -> bool:
        """Whether this attempt has a verdict: a reward that no failure of another domain spoils."""
        if self.rewards is None:
            return False
        return self.failure is None or self.failure.domain is Domain.AGENT


def solved(rewards: Mapping[str, float]) -> bool:
    """Whether a verdict counts as solved: the key ``reward`` is 1 or more; without it, every key is."""
    values = [rewards["reward"]] if "reward" in rewards else list(rewards.values())
    return bool(values) and all(value >= SOLVED_AT - _FLOAT_SLACK for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """One repeat of a cell, with all its attempts, the last of which decides.

    ``refusal`` is set, and there are no attempts, for a task that was refused when the run was planned.
    """

    name: str
    task: str
    agent: str
    model: str | None
    repeat: int
    attempts: tuple[AttemptOutcome, ...] = ()
    refusal: Failure | None = None

    @property
    def last(self) -> AttemptOutcome | None:
        """The attempt that decides."""
        return self.attempts[-1] if self.attempts else None

    @property
    def failure(self) -> Failure | None:
        """Why there is no verdict, or what the agent ran into on its way to one."""
        return self.refusal or (self.last.failure if self.last else None)

    @property
    def graded(self) -> bool:
        """Whether there is a verdict."""
        return self.last is not None and self.last.graded

    @property
    def solved(self) -> bool:
        """Whether the verdict is that the task was solved."""
        return self.last is not None and self.graded and solved(self.last.rewards or {})

    @property
    def usage(self) -> Usage | None:
        """Tokens and money of all attempts, those that failed too."""
        return add_usage([attempt.usage for attempt in self.attempts if attempt.usage is not None])
