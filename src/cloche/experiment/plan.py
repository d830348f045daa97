"""From tasks, agents, models and repeats to the list of trials, with everything that can be refused refused.

Each task is read and checked once, here; a task that is broken or asks for what cannot be done becomes
trials with a reason and does not keep the others from running. Must never touch a sandbox or the network.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cloche.agents.base import Agent, ModelEndpoint, get_agent
from cloche.core.errors import ClocheError, InvalidInput, PlanRefused
from cloche.core.experiment.policy import Policy
from cloche.core.failures import Failure, classify
from cloche.core.names import trial_name
from cloche.core.outcome import Usage
from cloche.core.retry import RetryPolicy
from cloche.experiment.limits import TimeoutRules
from cloche.sandbox.driver import Capability
from cloche.tasks import BrokenTask, Task, refusals
from cloche.tasks.refuse import needs, refused

DEFAULT_MEMORY_BYTES = 2 << 30
DEFAULT_PIDS = 4096
NO_DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input_usd: float
    output_usd: float

    def cost_usd(self, usage: Usage) -> float | None:
        """Return the price of some tokens, ``None`` where their number is unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        return (usage.input_tokens * self.input_usd + usage.output_tokens * self.output_usd) / 1e6


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model under the name that the report shows, and its price if one is known."""

    endpoint: ModelEndpoint
    price: Price | None = None

    @property
    def name(self) -> str:
        """The model's name as its endpoint knows it."""
        return self.endpoint.model


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """One repeat of one cell.

    ``label`` is the task's name in the report. ``task`` is ``None`` for one that cannot be understood;
    with a ``problem`` the trial is refused and never started.
    """

    name: str
    label: str
    task: Task | None
    agent: Agent
    model: ModelChoice | None
    repeat: int
    problem: ClocheError | None = None

    @property
    def refusal(self) -> Failure | None:
        """Why it is refused, as a failure."""
        return None if self.problem is None else replace(classify(self.problem), detail="")

    @property
    def model_name(self) -> str | None:
        """The model's name, if there is a model."""
        return self.model.name if self.model else None

    @property
    def digest(self) -> str:
        """The task's content digest; zeros for one that could not be read."""
        return self.task.digest if self.task else NO_DIGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run needs to know before it starts."""

    trials: tuple[PlannedTrial, ...]
    repeats: int = 1
    policy: Policy = field(default_factory=Policy)
    limits: TimeoutRules = field(default_factory=TimeoutRules)

    @property
    def concurrency(self) -> int:
        """How many trials run at once."""
        return self.policy.concurrency

    @property
    def retry(self) -> RetryPolicy:
        """How infrastructure failures are tried again."""
        return self.policy.retry

    @property
    def timeout_multiplier(self) -> float:
        """What all time limits are multiplied by that have no multiplier of their own."""
        return self.limits.multiplier

    @property
    def refused(self) -> tuple[PlannedTrial, ...]:
        """The trials that will not be started."""
        return tuple(trial for trial in self.trials if trial.problem is not None)


def labels(tasks: Sequence[Task | BrokenTask]) -> list[str]:
    """Return one name per task for the report: the short one where it is the only one, else a longer one."""
    short = [task.name for task in tasks]
    full = [task.full_name if isinstance(task, Task) else task.name for task in tasks]
    shorts, fulls = Counter(short), Counter(full)
    return [
        short[i] if shorts[short[i]] == 1 else full[i] if fulls[full[i]] == 1 else str(task.path)
        for i, task in enumerate(tasks)
    ]


def problem_of(task: Task | BrokenTask, agent: Agent, environ: Mapping[str, str]) -> ClocheError | None:
    """Return why this agent cannot be run on this task here, if so."""
    if isinstance(task, BrokenTask):
        return task.error
    reasons = refusals(task, environ)
    if reasons:
        return refused(task, reasons[0])
    lacking = [stage.name for stage in task.stages if stage.solution.script is None]
    if agent.name == "oracle" and lacking:
        which = f" for the step `{lacking[0]}`" if lacking[0] else ""
        return PlanRefused(
            f"task `{task.name}` has no solution/solve.sh{which}, which the oracle runs",
            where=str(task.path),
            code="plan/no_solution",
        )
    return None


def cells(agents: Sequence[str], models: Sequence[ModelChoice]) -> list[tuple[Agent, ModelChoice | None]]:
    """Pair each agent with each model if it needs one, else with none.

    Raises InvalidInput for an unknown agent, and for one that needs a model where none is given.
    """
    pairs: list[tuple[Agent, ModelChoice | None]] = []
    for name in dict.fromkeys(agents):
        agent = get_agent(name)
        if agent.needs_model and not models:
            raise InvalidInput(
                f"agent `{name}` needs a model",
                hint="give one with -m MODEL --base-url URL, or set MODEL_NAME and MODEL_BASE_URL",
            )
        pairs += [(agent, model) for model in models] if agent.needs_model else [(agent, None)]
    return pairs


def make_plan(
    tasks: Sequence[Task | BrokenTask],
    agents: Sequence[str],
    models: Sequence[ModelChoice],
    *,
    repeats: int = 1,
    concurrency: int = 1,
    policy: Policy | None = None,
    timeout_multiplier: float = 1.0,
    limits: TimeoutRules | None = None,
    retry: RetryPolicy | None = None,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """Expand to trials: repeats outermost, then tasks, then agents with their models.

    ``limits`` says more about time limits than ``timeout_multiplier``, and replaces it; so does ``policy``
    for ``concurrency`` and ``retry``.
    """
    host = os.environ if environ is None else environ
    names = labels(tasks)
    pairs = cells(agents, models)
    checked = [
        (task, label, [(agent, model, problem_of(task, agent, host)) for agent, model in pairs])
        for task, label in zip(tasks, names, strict=True)
    ]
    trials = [
        PlannedTrial(
            name=_name(task, label, agent, model, repeat),
            label=label,
            task=task if isinstance(task, Task) else None,
            agent=agent,
            model=model,
            repeat=repeat,
            problem=problem,
        )
        for repeat in range(1, repeats + 1)
        for task, label, row in checked
        for agent, model, problem in row
    ]
    return Plan(
        trials=tuple(trials),
        repeats=repeats,
        policy=policy or Policy(concurrency=concurrency, retry=retry or RetryPolicy()),
        limits=limits or TimeoutRules(multiplier=timeout_multiplier),
    )


def for_driver(plan: Plan, name: str, able: frozenset[Capability]) -> Plan:
    """Return the plan with those trials refused whose task needs what the driver ``name`` cannot do."""
    return replace(plan, trials=tuple(_checked(trial, name, able) for trial in plan.trials))


def _checked(trial: PlannedTrial, name: str, able: frozenset[Capability]) -> PlannedTrial:
    lacking = sorted(needs(trial.task) - able) if trial.task and trial.problem is None else []
    if not lacking or trial.task is None:
        return trial
    problem = PlanRefused(
        f"task `{trial.task.name}` needs `{lacking[0].value}`, which the {name} driver cannot do here",
        where=str(trial.task.path),
        code="plan/capability_missing",
    )
    return replace(trial, problem=problem)


def _name(task: Task | BrokenTask, label: str, agent: Agent, model: ModelChoice | None, repeat: int) -> str:
    full = task.full_name if isinstance(task, Task) else task.name
    key = full if label == task.name else label
    return trial_name(task.name, agent.name, model.name if model else None, repeat, key=key)
