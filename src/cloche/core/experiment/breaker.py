"""A circuit breaker for each thing that many trials share: a model's endpoint, the driver.

Closed, it counts failures in a row. Open, nothing is started on it until a time; then one attempt probes.
Must never hold a resource for a failure that is one trial's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cloche.core.experiment.events import TrialSpec
from cloche.core.experiment.policy import BreakerRules
from cloche.core.failures import Failure

DRIVER = "driver"

_DRIVER_CODES = frozenset(
    {
        "infra/capacity",
        "infra/sandbox_start",
        "infra/sandbox_start_timeout",
        "infra/disk_full",
        "infra/no_descriptors",
        "doctor/unusable",
    }
)


def model_resource(model: str) -> str:
    """Return the name of a model's endpoint as a resource."""
    return f"model {model}"


def resources(trial: TrialSpec) -> tuple[str, ...]:
    """Return what an attempt at this trial needs that others need too."""
    return (DRIVER,) if trial.model is None else (DRIVER, model_resource(trial.model))


def blamed(trial: TrialSpec, failure: Failure | None) -> str | None:
    """Return the resource whose failure this is, if any. A rate limit is no failure of an endpoint."""
    if failure is None:
        return None
    if failure.code in _DRIVER_CODES:
        return DRIVER
    if trial.model is not None and failure.code.startswith("infra/model"):
        return None if failure.code == "infra/model_rate_limit" else model_resource(trial.model)
    return None


class Circuit(StrEnum):
    """``GONE``: it was probed in vain so often that it is given up."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    GONE = "gone"


@dataclass(slots=True)
class Breaker:
    """The state of one resource."""

    rules: BreakerRules
    state: Circuit = Circuit.CLOSED
    in_a_row: int = 0
    who: set[str] = field(default_factory=set)
    held: int = 0
    until_s: float = 0.0
    probe: str | None = None
    failure: Failure | None = None

    def free(self, at_s: float) -> bool:
        """Whether an attempt may be started on it."""
        return self.state is Circuit.CLOSED or (self.state is Circuit.OPEN and at_s >= self.until_s)

    def started(self, name: str) -> None:
        """An attempt was started: the probe, if it is open."""
        if self.state is Circuit.OPEN:
            self.state, self.probe = Circuit.PROBING, name

    def good(self) -> bool:
        """It worked; returns whether that closes it."""
        closes = self.state in {Circuit.OPEN, Circuit.PROBING}
        if self.state is not Circuit.GONE:
            self.state, self.probe, self.in_a_row, self.held = Circuit.CLOSED, None, 0, 0
            self.who.clear()
        return closes

    def neutral(self, name: str) -> None:
        """An attempt ended that says nothing about it; a probe has to be made again."""
        if self.state is Circuit.PROBING and self.probe == name:
            self.state, self.probe = Circuit.OPEN, None

    def bad(self, name: str, failure: Failure, at_s: float) -> bool:
        """It failed; returns whether it is held, or given up, from now on."""
        self.in_a_row += 1
        self.who.add(name)
        self.failure = failure
        probing = self.state is Circuit.PROBING and self.probe == name
        enough = self.in_a_row >= self.rules.failures and len(self.who) >= self.rules.trials
        if not (probing or (self.state is Circuit.CLOSED and enough)):
            return False
        self.probe = None
        self.held += 1
        if self.held > self.rules.probes:
            self.state = Circuit.GONE
        else:
            wait_s = self.rules.hold_s * self.rules.factor ** (self.held - 1)
            self.state, self.until_s = Circuit.OPEN, at_s + min(wait_s, self.rules.max_hold_s)
        return True
