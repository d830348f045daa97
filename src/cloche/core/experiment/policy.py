"""The rules of an experiment that its plan sets. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloche.core.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the whole experiment may use; ``None`` is no limit. Unknown cost counts as nothing spent."""

    cost_usd: float | None = None
    tokens: int | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """Additive increase, halved on a rate limit: bounds of the limit of each model."""

    floor: int = 1
    ceiling: int = 4096
    start: int = 8
    settle_s: float = 10.0
    """After it was halved, further rate limits within this time are of the same burst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """When a resource that fails across trials is held, how long, and when it is given up."""

    failures: int = 5
    trials: int = 3
    hold_s: float = 30.0
    factor: float = 2.0
    max_hold_s: float = 600.0
    probes: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """``concurrency`` trials at once in all, and per model and per agent where named there.

    ``start_interval_s`` is the mean time between two starts, spread over ± 50 %. ``max_unverdicted`` ends
    the experiment once so many trials are over without a verdict (``--maxfail``).
    """

    concurrency: int = 1
    per_model: Mapping[str, int] = field(default_factory=dict)
    per_agent: Mapping[str, int] = field(default_factory=dict)
    auto: Auto | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    budget: Budget = field(default_factory=Budget)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    start_interval_s: float = 0.0
    max_unverdicted: int | None = None
    seed: int = 0
