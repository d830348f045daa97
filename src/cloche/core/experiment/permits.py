"""Permits: how many attempts run in all, per model and per agent, and how many may.

Must never let a count go below zero or above its limit at the moment of taking.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cloche.core.experiment.events import TrialSpec
from cloche.core.experiment.policy import Auto, Policy


@dataclass(slots=True)
class Adaptive:
    """The limit of one model under ``Auto``: one more after as many good ends as the limit, halved on 429."""

    rules: Auto
    limit: float
    halved_at_s: float = -float("inf")

    def good(self) -> None:
        """An attempt ended without a complaint of the model's endpoint."""
        self.limit = min(float(self.rules.ceiling), self.limit + 1.0 / max(1.0, self.limit))

    def limited(self, at_s: float) -> None:
        """The endpoint said: too many requests."""
        if at_s - self.halved_at_s >= self.rules.settle_s:
            self.limit = max(float(self.rules.floor), self.limit / 2)
            self.halved_at_s = at_s


@dataclass(slots=True)
class Permits:
    """What is taken. ``concurrency`` may be changed while attempts run."""

    policy: Policy
    concurrency: int
    taken: int = 0
    exclusive: bool = False
    by_model: Counter[str] = field(default_factory=Counter)
    by_agent: Counter[str] = field(default_factory=Counter)
    adaptive: dict[str, Adaptive] = field(default_factory=dict)

    def model_limit(self, model: str) -> int | None:
        """Return how many attempts may ask this model at once; ``None``: no limit of its own."""
        fixed = self.policy.per_model.get(model)
        if self.policy.auto is None:
            return fixed
        own = int(self._adaptive(model, self.policy.auto).limit)
        return own if fixed is None else min(own, fixed)

    def _adaptive(self, model: str, rules: Auto) -> Adaptive:
        if model not in self.adaptive:
            self.adaptive[model] = Adaptive(rules, float(rules.start))
        return self.adaptive[model]

    def learn(self, model: str, *, limited: bool, at_s: float) -> None:
        """Note how an attempt with this model ended."""
        if self.policy.auto is not None:
            own = self._adaptive(model, self.policy.auto)
            if limited:
                own.limited(at_s)
            else:
                own.good()

    def free(self, trial: TrialSpec) -> bool:
        """Whether one more attempt at this trial may run now."""
        if self.exclusive or self.taken >= self.concurrency or (trial.exclusive and self.taken):
            return False
        agent_limit = self.policy.per_agent.get(trial.agent)
        if agent_limit is not None and self.by_agent[trial.agent] >= agent_limit:
            return False
        if trial.model is None:
            return True
        limit = self.model_limit(trial.model)
        return limit is None or self.by_model[trial.model] < limit

    def take(self, trial: TrialSpec) -> None:
        """Take what ``free`` has granted."""
        self.taken += 1
        self.exclusive = trial.exclusive
        self.by_agent[trial.agent] += 1
        if trial.model is not None:
            self.by_model[trial.model] += 1

    def give_back(self, trial: TrialSpec) -> None:
        """Give back what an attempt at this trial held."""
        self.taken -= 1
        self.exclusive = False
        self.by_agent[trial.agent] -= 1
        if trial.model is not None:
            self.by_model[trial.model] -= 1
