"""What an experiment has spent, against its budget. An unknown cost is counted apart, never as 0."""

from __future__ import annotations

from dataclasses import dataclass

from cloche.core.experiment.policy import Budget
from cloche.core.failures import Failure, failure
from cloche.core.outcome import Usage


@dataclass(slots=True)
class Spending:
    """Sums over all attempts. ``unpriced`` is how many had a cost that nobody knows."""

    budget: Budget
    began_s: float | None = None
    cost_usd: float = 0.0
    tokens: int = 0
    unpriced: int = 0

    def began(self, at_s: float) -> None:
        """Note when the experiment began; only the first time counts."""
        if self.began_s is None:
            self.began_s = at_s

    @property
    def deadline_s(self) -> float | None:
        """When the time for the whole is up."""
        if self.budget.wall_s is None or self.began_s is None:
            return None
        return self.began_s + self.budget.wall_s

    def add(self, usage: Usage | None) -> None:
        """Add what an attempt has used, one that failed too."""
        if usage is None:
            return
        self.tokens += (usage.input_tokens or 0) + (usage.output_tokens or 0)
        self.cost_usd += usage.cost_usd or 0.0
        self.unpriced += usage.cost_usd is None

    def exhausted(self, at_s: float) -> Failure | None:
        """Return which budget is used up, if one is."""
        budget, deadline_s = self.budget, self.deadline_s
        if budget.cost_usd is not None and self.cost_usd >= budget.cost_usd:
            return failure("budget/money", f"${self.cost_usd:.2f} of ${budget.cost_usd:.2f} are spent")
        if budget.tokens is not None and self.tokens >= budget.tokens:
            return failure("budget/tokens", f"{self.tokens:,} of {budget.tokens:,} tokens are used up")
        if deadline_s is not None and at_s >= deadline_s:
            return failure("budget/time", f"the {budget.wall_s:g} s for the whole experiment are up")
        return None
