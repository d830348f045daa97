"""One attempt: a fresh sandbox, the agent, the end of all its processes, the verifier, and nothing left.

Every way out of here, cancellation too, passes through ``_end``, which deletes the sandbox and writes the
result. Must never give a verdict when anything but the agent failed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from cloche.agents.base import AgentContext
from cloche.agents.trajectory import TrajectoryBuilder
from cloche.core.errors import ClocheError, Domain
from cloche.core.failures import FAILURES, Failure, classify
from cloche.core.ids import new_id
from cloche.core.outcome import AttemptOutcome, Span, Usage
from cloche.experiment.collect import collect
from cloche.experiment.plan import DEFAULT_MEMORY_BYTES, PlannedTrial, Timeouts, timeouts, with_timeouts
from cloche.experiment.record.attempt import AttemptRecord, SettingRecord, fill, public_url, when
from cloche.experiment.record.export import Job, dump, trial_config, trial_lock, trial_result
from cloche.experiment.record.files import make_private, recording, write_text
from cloche.experiment.record.trial import TrialFolder
from cloche.experiment.secrets import Scrubber
from cloche.experiment.shield import thread_to_the_end, to_the_end
from cloche.sandbox.driver import Driver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import EndReason, Lease, PreparedImage, Resources, SandboxSpec
from cloche.tasks.model import Task
from cloche.tasks.refuse import resolve_env
from cloche.tasks.verify import prepare_paths, verify

HEARTBEAT_S = 120.0
LEASE_SLACK_S = 300.0
KILL_TIMEOUT_S = 60.0
DELETE_TIMEOUT_S = 120.0
VERIFIER_SLACK_S = 60.0
INTERRUPTED = "user/interrupted"
OUT_OF_MEMORY = EndReason.OUT_OF_MEMORY.value

T = TypeVar("T")


class PhaseTimeout(ClocheError):
    """A phase of the attempt was not done in time."""

    code: ClassVar[str] = "infra/request_timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all attempts of a run share. ``now`` gives seconds since 1970; ``environ`` is the host's."""

    driver: Driver
    job: Job
    scrubber: Scrubber
    now: Callable[[], float] = time.time
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def sandbox_spec(
    bench: Bench, trial: PlannedTrial, task: Task, limits: Timeouts, *, number: int, sandbox_id: str
) -> SandboxSpec:
    """Return what the sandbox is asked to be: limits, labels and lease, all known before it is made."""
    environment = task.environment
    total_s = limits.total_s
    return SandboxSpec(
        id=sandbox_id,
        resources=Resources(
            cpus=environment.cpus, memory_bytes=environment.memory_bytes or DEFAULT_MEMORY_BYTES
        ),
        network=environment.network_mode,
        env=resolve_env(environment.env, bench.environ),
        workdir=environment.workdir,
        labels={
            "experiment": str(bench.job.id),
            "trial": trial.name,
            "attempt": str(number),
            "task": trial.label,
            "agent": trial.agent.name,
            **({"model": trial.model_name} if trial.model_name else {}),
        },
        lease=Lease(
            ttl_s=None if total_s is None else total_s + LEASE_SLACK_S, idle_s=None, heartbeat_s=HEARTBEAT_S
        ),
    )


def in_an_attempt(found: Failure) -> Failure:
    """Return a failure as it counts inside an attempt: there, a wrong request is not the user's but ours."""
    if found.domain is Domain.USER and found.code != INTERRUPTED:
        return dataclasses.replace(found, kind=FAILURES["infra/error"])
    return found


class Attempt:
    """Attempt number ``number`` at a trial. Call ``run`` once; ``outcome`` is there when it has ended."""

    def __init__(
        self, bench: Bench, trial: PlannedTrial, task: Task, image: PreparedImage, number: int
    ) -> None:
        """``task`` is the trial's; everything else of it is known from the plan."""
        self._bench = bench
        self._trial = trial
        self._limits = timeouts(task, bench.job.plan.timeout_multiplier)
        self._task = with_timeouts(task, bench.job.plan.timeout_multiplier)
        self._image = image
        self._number = number
        self._folder = TrialFolder(bench.job.folder / trial.name)
        self._sandbox_id = new_id("sb")
        self._spec = sandbox_spec(
            bench, trial, task, self._limits, number=number, sandbox_id=self._sandbox_id
        )
        self._sandbox: Sandbox | None = None
        self._phases: dict[str, Span] = {}
        self._failure: Failure | None = None
        self._rewards: dict[str, float] | None = None
        self._ends: Counter[str] = Counter()
        self._lines: list[str] = []
        self._started_at = bench.now()
        self.outcome: AttemptOutcome | None = None
        self._context = self._agent_context()
        self._record = self._first_record()

    async def run(self) -> AttemptOutcome:
        """Do it, and return what came of it once nothing of it is left.

        Raises CancelledError when cancelled, and RecordError when the record cannot be written, both only
        after the sandbox is gone.
        """
        cancelled = False
        try:
            await thread_to_the_end(self._begin)
            await self._work()
        except asyncio.CancelledError as error:
            cancelled = True
            self._failure = classify(error)
            self._rewards = None
        except Exception as error:  # noqa: BLE001  # boundary: attempt
            self._failure = in_an_attempt(classify(error))
            self._rewards = None
        outcome = await to_the_end(self._end())
        if cancelled:
            raise asyncio.CancelledError
        return outcome

    # --- what is known before it starts ---

    def _agent_context(self) -> AgentContext:
        trial, task = self._trial, self._task
        session = f"{self._bench.job.id}/{trial.name}/{self._number}"
        return AgentContext(
            logs_dir=self._folder.agent_dir,
            trajectory=TrajectoryBuilder(
                agent_name=trial.agent.name,
                agent_version=trial.agent.version,
                session_id=session,
                model_name=trial.model_name,
            ),
            user=task.agent.user,
            workdir=task.environment.workdir,
            model=trial.model.endpoint if trial.model else None,
            solution_dir=task.solution.solution_dir if trial.agent.name == "oracle" else None,
            solution_env=resolve_env(task.solution.env, self._bench.environ)
            if trial.agent.name == "oracle"
            else {},
        )

    def _first_record(self) -> AttemptRecord:
        trial, task, spec = self._trial, self._task, self._spec
        return AttemptRecord(
            trial=trial.name,
            task=trial.label,
            agent=trial.agent.name,
            agent_version=trial.agent.version,
            model=trial.model_name,
            repeat=trial.repeat,
            number=self._number,
            sandbox_id=self._sandbox_id,
            started_at=when(self._started_at),
            setting=SettingRecord(
                driver=self._bench.driver.name,
                isolation=getattr(self._bench.driver, "isolation", ""),
                image=self._image.name,
                image_digest=self._image.digest,
                network=spec.network.value,
                cpus=spec.resources.cpus,
                memory_bytes=spec.resources.memory_bytes,
                pids=spec.resources.pids,
                agent_timeout_s=self._limits.agent_s,
                verifier_timeout_s=self._limits.verifier_s,
                endpoint=public_url(trial.model.endpoint.base_url) if trial.model else None,
                not_enforced=list(task.not_enforced),
            ),
        )

    def _begin(self) -> None:
        job, trial = self._bench.job, self._trial
        files: dict[str, object] = {
            "config.json": dump(trial_config(job, trial)),
            "lock.json": dump(trial_lock(job, trial)),
        }
        self._folder.begin(self._record, files)

    # --- the phases ---

    def _log(self, line: str) -> None:
        self._lines.append(f"{when(self._bench.now()).isoformat(timespec='milliseconds')} {line}")

    @asynccontextmanager
    async def _phase(self, name: str) -> AsyncIterator[None]:
        began_at = self._bench.now()
        self._log(f"{name}: begins")
        try:
            yield
        finally:
            self._phases[name] = Span(began_at, self._bench.now())
            self._log(f"{name}: over after {self._phases[name].seconds:.3f} s")

    async def _work(self) -> None:
        async with self._phase("environment_setup"):
            sandbox = await self._within(self._limits.start_s, "infra/sandbox_start_timeout", self._create())
        async with self._phase("agent_setup"):
            setup = self._trial.agent.setup(sandbox, self._context)
            await self._within(self._limits.setup_s, "infra/agent_setup_timeout", setup)
        async with self._phase("agent_execution"):
            await self._run_agent(sandbox)
        async with self._phase("collection"):
            await collect(sandbox, self._folder, self._log)
        async with self._phase("verifier"):
            limit_s = self._limits.verifier_s + VERIFIER_SLACK_S
            grading = verify(self._task, sandbox, self._folder.verifier_dir, environ=self._bench.environ)
            result = await self._within(limit_s, "verifier/timeout", grading)
        self._rewards = dict(result.rewards)
        for path in result.skipped:
            self._log(f"{path} is neither a file nor a folder and was left")

    async def _within(self, seconds: float, code: str, work: Awaitable[T]) -> T:
        """Await ``work``. Our own limit is a failure of ``code``; a time-out from inside stays what it is."""
        try:
            async with asyncio.timeout(seconds) as limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise PhaseTimeout(f"not done after {seconds:g} s", code=code) from error

    async def _create(self) -> Sandbox:
        sandbox = await self._bench.driver.create(self._spec, self._image)
        self._sandbox = sandbox
        await prepare_paths(sandbox, self._task)
        return sandbox

    async def _run_agent(self, sandbox: Sandbox) -> None:
        """Run the agent and end all its processes. What it ran into itself is kept, and graded."""
        run = self._trial.agent.run(self._task.instruction, sandbox, self._context)
        try:
            if self._limits.agent_s is None:
                await run
            else:
                await self._within(self._limits.agent_s, "agent/timeout", run)
        except ClocheError as error:
            found = classify(error)
            if not found.kind.graded:
                raise
            self._failure = found
            self._log(f"agent: {found.message} [{found.code}]; graded all the same")
        await self._count_ends(sandbox)
        async with asyncio.timeout(KILL_TIMEOUT_S):
            await sandbox.kill_all()

    async def _count_ends(self, sandbox: Sandbox) -> None:
        """Note why the agent's commands ended: by the guest's table, and by the memory limit's own count."""
        for status in await sandbox.commands():
            self._ends[status.end.reason.value if status.end else "running"] += 1
        hungry = max(self._ends[OUT_OF_MEMORY], sandbox.out_of_memory_kills)
        if hungry:
            self._ends[OUT_OF_MEMORY] = hungry
            self._log(f"agent: {OUT_OF_MEMORY}: the memory limit has ended {hungry} of its processes")

    # --- the end ---

    async def _end(self) -> AttemptOutcome:
        async with self._phase("cleanup"):
            deleted = await self._delete()
        outcome = self._outcome()
        record = fill(self._record, outcome).model_copy(
            update={"sandbox_deleted": deleted, "command_ends": dict(self._ends)}
        )
        await asyncio.to_thread(self._write, outcome, record)
        self.outcome = outcome
        return outcome

    async def _delete(self) -> bool:
        """Delete the sandbox by its id, whether or not its making was ever answered."""
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                await self._bench.driver.delete(self._sandbox_id)
                if self._sandbox is not None:
                    await self._sandbox.close()
        except Exception as error:  # noqa: BLE001  # boundary: driver
            found = classify(error)
            self._log(f"the sandbox {self._sandbox_id} could not be deleted: {found.message} [{found.code}]")
            return False
        return True

    def _usage(self) -> Usage | None:
        usage = self._context.usage.total()
        price = self._trial.model.price if self._trial.model else None
        if usage is None or price is None:
            return usage
        return dataclasses.replace(usage, cost_usd=price.cost_usd(usage))

    def _outcome(self) -> AttemptOutcome:
        scrub = self._bench.scrubber.text
        found = self._failure
        if found is not None:
            found = dataclasses.replace(found, message=scrub(found.message), detail=scrub(found.detail))
        return AttemptOutcome(
            number=self._number,
            started_at=self._started_at,
            finished_at=self._bench.now(),
            sandbox_id=self._sandbox_id,
            failure=found,
            rewards=self._rewards,
            usage=self._usage(),
            steps=self._context.trajectory.agent_steps if self._trial.model else None,
            phases=dict(self._phases),
        )

    def _write(self, outcome: AttemptOutcome, record: AttemptRecord) -> None:
        """Write what is left to write; ``result.json`` last, since it says that all else is there."""
        folder = self._folder
        trajectory = folder.agent_dir / "trajectory.json"
        usage = outcome.usage
        with recording(trajectory):
            cost_usd = usage.cost_usd if usage else None
            self._context.trajectory.write(trajectory, self._context.usage, cost_usd=cost_usd)
        if outcome.failure is not None:
            text = f"{outcome.failure.message} [{outcome.failure.code}]\n\n{outcome.failure.detail}"
            write_text(folder.path / "exception.txt", text)
        write_text(folder.path / "trial.log", "\n".join(self._lines) + "\n")
        make_private(folder.path)
        self._bench.scrubber.tree(folder.path)
        folder.write_attempt(record, durable=True)
        folder.write_result(dump(trial_result(self._bench.job, self._trial, outcome)))
