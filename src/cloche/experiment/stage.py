"""One stage of an attempt: a step of a task in steps, or the whole of a task without them.

Made ready, the agent run and all its processes ended, the evidence collected, graded. Must never start the
verifier while a process of the agent lives, and never let a stage read how an earlier one was graded.
"""

from __future__ import annotations

import dataclasses
import posixpath
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from cloche.agents.base import AgentContext
from cloche.agents.trajectory import TrajectoryBuilder
from cloche.core.errors import ClocheError, InfraError, SandboxLost
from cloche.core.failures import Failure, classify
from cloche.core.outcome import Span, StepOutcome, Usage
from cloche.experiment.bench import Bench, in_an_attempt, within
from cloche.experiment.collect import Evidence, collect
from cloche.experiment.limits import Timeouts
from cloche.experiment.plan import PlannedTrial
from cloche.experiment.record.trial import TrialFolder
from cloche.experiment.services import ENTRYPOINT_PREFIX, begin_again, end_all
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, EndReason, NetworkPolicy
from cloche.tasks.health import wait_until_healthy
from cloche.tasks.model import Step, Task
from cloche.tasks.refuse import resolve_env
from cloche.tasks.select import selected
from cloche.tasks.verify import forget_grading, workdir_of

SKILLS = "/runtime/skills"
OUT_OF_MEMORY = EndReason.OUT_OF_MEMORY.value

Log = Callable[[str], None]


class StepSetupFailed(InfraError):
    """The step's setup.sh failed."""

    code = "infra/step_setup"


@dataclass(slots=True, kw_only=True)
class Stage:
    """What one stage is made of, and what it has come to so far."""

    bench: Bench
    trial: PlannedTrial
    task: Task
    step: Step
    limits: Timeouts
    folder: TrialFolder
    context: AgentContext
    log: Log
    on_phase: Callable[[str], None] = lambda _phase: None
    phases: dict[str, Span] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    sides: tuple[str, ...] = ()
    networks: dict[str, NetworkPolicy] = field(default_factory=dict)
    network: NetworkPolicy = field(init=False)
    failure: Failure | None = None
    rewards: dict[str, float] | None = None

    def __post_init__(self) -> None:
        """Begin with the network of the environment, which every stage leaves behind."""
        self.network = self.networks["environment"] = self.task.environment.policy

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """Note when a phase begins and ends."""
        began_at = self.bench.now()
        self.on_phase(name)
        shown = f"{self.step.name}: {name}" if self.step.name else name
        self.log(f"{shown}: begins")
        try:
            yield
        finally:
            self.phases[name] = Span(began_at, self.bench.now())
            self.log(f"{shown}: over after {self.phases[name].seconds:.3f} s")

    # --- before the agent ---

    async def make_ready(self, sandbox: Sandbox, *, first: bool) -> None:
        """Bring a step's files, run its ``setup.sh`` and wait until its healthcheck succeeds."""
        if not first:
            await forget_grading(sandbox)
        step = self.step
        workdir = workdir_of(self.task.environment, sandbox)
        if step.workdir_dir is not None:
            await sandbox.upload(step.workdir_dir, workdir, user=step.agent.user)
        if step.setup is not None:
            await self._set_up(sandbox, posixpath.join(workdir, "setup.sh"), workdir)
        if step.healthcheck is not None:
            tries = await wait_until_healthy(sandbox, step.healthcheck, user=step.agent.user, cwd=workdir)
            self.log(f"{step.name}: healthy after {tries} tries")

    async def _set_up(self, sandbox: Sandbox, script: str, workdir: str) -> None:
        shell = "/bin/bash" if await sandbox.exists("/bin/bash") else "/bin/sh"
        completed = await sandbox.run(Command(argv=(shell, script), user=self.step.agent.user, cwd=workdir))
        if completed.reason is EndReason.SANDBOX_LOST:
            raise SandboxLost(completed.message or None)
        if not completed.ok:
            said = (completed.stderr.text.strip() or completed.message).split("\n")[-1][:200]
            how = completed.reason.value if completed.exit_code is None else f"status {completed.exit_code}"
            raise StepSetupFailed(
                f"setup.sh of the step `{self.step.name}` failed ({how})",
                hint=f"it said last: {said}" if said else None,
                where=str(self.step.setup),
            )

    async def open_network(self, sandbox: Sandbox, phase: str, policy: NetworkPolicy | None) -> None:
        """Give the sandbox the network of a phase, by default the environment's, and note what holds.

        Raises InfraError where it could not be set; the sandbox has none then.
        """
        wanted = self.task.environment.policy if policy is None else policy
        if self.network != wanted:
            for side in self.sides:  # or the agent could go out by way of a service
                await self.bench.driver.set_network(side, wanted)
            self.network = await self.bench.driver.set_network(sandbox.id, wanted)
            self.log(f"network: {wanted.mode.value} {' '.join(wanted.allow)}".rstrip())
        self.networks[phase] = self.network

    # --- the agent ---

    async def run_agent(self, sandbox: Sandbox) -> None:
        """Prepare the agent, run it, and end all its processes. What it ran into itself is graded."""
        agent = self.trial.agent
        async with AsyncExitStack() as stack:
            solution_dir = self.context.solution_dir
            if solution_dir is not None:
                chosen = await stack.enter_async_context(selected(solution_dir, self.task.path))
                self.context.solution_dir = chosen
            async with self.phase("agent_setup"):
                setup = agent.setup(sandbox, self.context)
                await within(self.limits.setup_s, "infra/agent_setup_timeout", setup)
            async with self.phase("agent_execution"):
                await self.open_network(sandbox, "agent", self.step.agent.network)
                await self._run(sandbox)

    async def _run(self, sandbox: Sandbox) -> None:
        run = self.trial.agent.run(self.step.instruction, sandbox, self.context)
        try:
            if self.limits.agent_s is None:
                await run
            else:
                await within(self.limits.agent_s, "agent/timeout", run)
        except ClocheError as error:
            found = in_an_attempt(classify(error))
            if not found.kind.graded:
                raise
            self.failure = found
            self.log(f"agent: {found.message} [{found.code}]; graded all the same")
        await self._count_ends(sandbox)
        await end_all(sandbox)
        await self.open_network(sandbox, "environment", None)
        await begin_again(sandbox, self.task.environment, self.log, self.limits.start_s)

    async def _count_ends(self, sandbox: Sandbox) -> None:
        """Note why the agent's commands ended: by the guest's table, and by the memory limit's own count."""
        for status in await sandbox.commands():
            if not status.id.startswith(ENTRYPOINT_PREFIX):
                self.ends[status.end.reason.value if status.end else "running"] += 1
        hungry = max(self.ends[OUT_OF_MEMORY], sandbox.out_of_memory_kills)
        if hungry:
            self.ends[OUT_OF_MEMORY] = hungry
            self.log(f"agent: {OUT_OF_MEMORY}: the memory limit has ended {hungry} of its processes")

    # --- after the agent ---

    def evidence(self, sandbox: Sandbox) -> Evidence:
        """Return what is to be collected."""
        return Evidence(
            workdir=workdir_of(self.task.environment, sandbox),
            artifacts=self.step.artifacts,
            commands=self.step.verifier.collect,
        )

    async def collect(self, sandbox: Sandbox) -> Evidence:
        """Collect the evidence, and say what it was."""
        evidence = self.evidence(sandbox)
        async with self.phase("collection"):
            await collect(sandbox, self.folder, self.log, evidence)
        return evidence

    # --- what came of it ---

    def usage(self) -> Usage | None:
        """Return what the models took, with its price where that is known."""
        usage = self.context.usage.total()
        price = self.trial.model.price if self.trial.model else None
        if usage is None or price is None:
            return usage
        return dataclasses.replace(usage, cost_usd=price.cost_usd(usage))

    def steps(self) -> int | None:
        """Return how many steps an agent with a model has taken."""
        return self.context.trajectory.agent_steps if self.trial.model else None

    def outcome(self) -> StepOutcome:
        """Return what the stage came to."""
        scrub = self.bench.scrubber.text
        found = self.failure
        if found is not None:
            found = dataclasses.replace(found, message=scrub(found.message), detail=scrub(found.detail))
        return StepOutcome(
            name=self.step.name,
            failure=found,
            rewards=self.rewards,
            usage=self.usage(),
            steps=self.steps(),
            phases=dict(self.phases),
        )

    def write_trajectory(self) -> None:
        """Write the agent's ``trajectory.json``. Raises OSError."""
        usage = self.usage()
        self.context.trajectory.write(
            self.folder.agent_dir / "trajectory.json",
            self.context.usage,
            cost_usd=usage.cost_usd if usage else None,
        )


async def bring_skills(sandbox: Sandbox, task: Task, log: Log) -> str | None:
    """Copy the image's folder of skills to where agents look for them; return that place, if it has any."""
    folder = task.environment.skills_dir
    if folder is None:
        return None
    source = posixpath.join(workdir_of(task.environment, sandbox), folder)
    if not await sandbox.exists(source):
        log(f"{source} is not there: the agent has no skills")
        return None
    if source == SKILLS:
        return SKILLS
    await sandbox.make_dir(SKILLS, mode=0o755)
    line = f"cp -R {shlex.quote(source)}/. {SKILLS}/ && chmod -R a+rX {SKILLS}"
    completed = await sandbox.run(Command(shell=line, user="0", cwd="/", timeout_s=60.0))
    if not completed.ok:
        raise InfraError(
            f"the skills could not be copied: {completed.message or completed.stderr.text.strip()}"
        )
    return SKILLS


def agent_context(
    bench: Bench, trial: PlannedTrial, task: Task, step: Step, *, folder: TrialFolder, session: str
) -> AgentContext:
    """Return a stage as the agent sees it."""
    oracle = trial.agent.name == "oracle"
    return AgentContext(
        logs_dir=folder.agent_dir,
        trajectory=TrajectoryBuilder(
            agent_name=trial.agent.name,
            agent_version=trial.agent.version,
            session_id=f"{session}/{step.name}" if step.name else session,
            model_name=trial.model_name,
        ),
        user=step.agent.user,
        workdir=task.environment.workdir,
        model=trial.model.endpoint if trial.model else None,
        solution_dir=step.solution.solution_dir if oracle else None,
        solution_env=resolve_env(step.solution.env, bench.environ) if oracle else {},
    )
