"""One attempt: a fresh sandbox, the agent, the end of all its processes, the verifier, and nothing left.

Every way out of here, cancellation too, passes through ``_end``, which deletes the sandbox and writes the
result. Must never give a verdict when anything but the agent failed.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from cloche.core.failures import Failure, classify
from cloche.core.ids import new_id
from cloche.core.outcome import AttemptOutcome, Span, Usage, add_usage, combine_rewards, missed
from cloche.experiment.bench import (
    HEARTBEAT_S,
    INTERRUPTED,
    LEASE_SLACK_S,
    Bench,
    PhaseTimeout,
    in_an_attempt,
    sandbox_spec,
    within,
)
from cloche.experiment.boxes import Boxes
from cloche.experiment.grading import Grader
from cloche.experiment.limits import timeouts, total
from cloche.experiment.plan import PlannedTrial
from cloche.experiment.record.attempt import (
    AttemptRecord,
    NetworkRecord,
    SettingRecord,
    fill,
    public_url,
    when,
)
from cloche.experiment.record.export import dump, trial_config, trial_lock, trial_result
from cloche.experiment.record.files import make_private, recording, write_text
from cloche.experiment.record.trial import TrialFolder
from cloche.experiment.services import begin
from cloche.experiment.shield import thread_to_the_end, to_the_end
from cloche.experiment.sides import Sides
from cloche.experiment.stage import Stage, agent_context, bring_skills
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import PreparedImage
from cloche.tasks.model import RewardStrategy, Task
from cloche.tasks.verify import prepare_paths

__all__ = ["HEARTBEAT_S", "INTERRUPTED", "LEASE_SLACK_S", "Attempt", "Bench", "PhaseTimeout", "in_an_attempt"]


class Attempt:
    """Attempt number ``number`` at a trial. Call ``run`` once; ``outcome`` is there when it has ended."""

    def __init__(
        self,
        bench: Bench,
        trial: PlannedTrial,
        task: Task,
        image: PreparedImage,
        number: int,
        *,
        verifier_images: Mapping[str, PreparedImage] | None = None,
        service_images: Mapping[str, PreparedImage] | None = None,
        on_phase: Callable[[str], None] = lambda _phase: None,
    ) -> None:
        """Touch nothing yet; ``task`` is the trial's.

        ``verifier_images`` are those of verifiers of their own, by step, ``service_images`` those of the
        task's services, by name. ``on_phase`` is told the name of each phase as it begins.
        """
        self._on_phase = on_phase
        self._bench = bench
        self._trial = trial
        self._task = task
        self._image = image
        self._number = number
        self._folder = TrialFolder(bench.job.folder / trial.name)
        self._lines: list[str] = []
        self._stages = [self._stage(index) for index in range(len(task.stages))]
        self._reached: list[Stage] = []
        total_s = total([stage.limits for stage in self._stages])
        spec = sandbox_spec(
            bench, trial, task.environment, number=number, sandbox_id=new_id("sb"), total_s=total_s
        )
        self._boxes = Boxes(bench.driver, self._log)
        self._sides = Sides(
            bench=bench,
            trial=trial,
            task=task,
            boxes=self._boxes,
            images=service_images or {},
            number=number,
            unit_id=spec.id,
            total_s=total_s,
            log=self._log,
        )
        self._spec = self._sides.join(spec)
        self._grader = Grader(bench=bench, boxes=self._boxes, images=verifier_images or {}, number=number)
        self._phases: dict[str, Span] = {}
        self._failure: Failure | None = None
        self._rewards: dict[str, float] | None = None
        self._started_at = bench.now()
        self.outcome: AttemptOutcome | None = None
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

    def _stage(self, index: int) -> Stage:
        bench, trial, task = self._bench, self._trial, self._task
        step = task.stages[index]
        folder = self._folder.step(step.name) if step.name else self._folder
        session = f"{bench.job.id}/{trial.name}/{self._number}"
        return Stage(
            bench=bench,
            trial=trial,
            task=task,
            step=step,
            limits=timeouts(task, bench.job.plan.limits, step),
            folder=folder,
            context=agent_context(bench, trial, task, step, folder=folder, session=session),
            log=self._log,
            on_phase=self._on_phase,
        )

    def _first_record(self) -> AttemptRecord:
        trial, task, spec = self._trial, self._task, self._spec
        limits = self._stages[0].limits
        return AttemptRecord(
            trial=trial.name,
            task=trial.label,
            agent=trial.agent.name,
            agent_version=trial.agent.version,
            model=trial.model_name,
            repeat=trial.repeat,
            number=self._number,
            sandbox_id=spec.id,
            started_at=when(self._started_at),
            setting=SettingRecord(
                driver=self._bench.driver.name,
                isolation=getattr(self._bench.driver, "isolation", ""),
                image=self._image.name,
                image_digest=self._image.digest,
                network=spec.network.mode.value,
                network_stated=task.environment.network_stated,
                cpus=spec.resources.cpus,
                memory_bytes=spec.resources.memory_bytes,
                pids=spec.resources.pids,
                agent_timeout_s=limits.agent_s,
                verifier_timeout_s=limits.verifier_s,
                endpoint=public_url(trial.model.endpoint.base_url) if trial.model else None,
                disk_bytes=spec.resources.disk_bytes,
                not_enforced=[] if spec.resources.disk_bytes else list(task.not_enforced),
                services={name: image.digest for name, image in self._sides.images.items()},
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
        self._on_phase(name)
        self._log(f"{name}: begins")
        try:
            yield
        finally:
            self._phases[name] = Span(began_at, self._bench.now())
            self._log(f"{name}: over after {self._phases[name].seconds:.3f} s")

    async def _work(self) -> None:
        async with self._phase("environment_setup"):
            start_s = self._stages[0].limits.start_s
            sandbox = await within(start_s, "infra/sandbox_start_timeout", self._create())
        for stage in self._stages:
            self._reached.append(stage)
            await self._do(stage, sandbox)
            if why := missed(stage.rewards, stage.step.min_reward):
                self._log(f"{stage.step.name}: {why}; the steps after it are left out")
                break
        rewards = [stage.rewards for stage in self._reached]
        self._rewards = combine_rewards(rewards, final=self._task.strategy is RewardStrategy.FINAL)
        self._failure = next((stage.failure for stage in self._reached if stage.failure), None)

    async def _do(self, stage: Stage, sandbox: Sandbox) -> None:
        """Do one stage; what ends it is noted with it, and passed on."""
        last = stage is self._stages[-1]
        try:
            if stage.step.name:
                await thread_to_the_end(stage.folder.make)
                first = stage is self._stages[0]
                async with stage.phase("environment_setup"):
                    ready = stage.make_ready(sandbox, first=first)
                    await within(stage.limits.start_s, "infra/sandbox_start_timeout", ready)
            await stage.run_agent(sandbox)
            evidence = await stage.collect(sandbox)
            await self._grader.grade(stage, sandbox, evidence, last=last)
        except BaseException as error:
            stage.failure = in_an_attempt(classify(error))
            raise

    async def _create(self) -> Sandbox:
        """Make the sandbox and have it ready: its folders, its files, its health, the agent's skills."""
        environment = self._task.environment
        await self._sides.start()
        sandbox = await self._boxes.create(self._spec, self._image)
        await prepare_paths(sandbox, self._task)
        await begin(sandbox, environment, self._log)
        skills_dir = await bring_skills(sandbox, self._task, self._log)
        for stage in self._stages:
            stage.context.skills_dir = skills_dir
            stage.sides = tuple(self._sides.ids)
        return sandbox

    # --- the end ---

    async def _end(self) -> AttemptOutcome:
        async with self._phase("cleanup"):
            deleted = await self._boxes.delete_all()
        outcome = self._outcome()
        ends = sum((stage.ends for stage in self._reached), Counter[str]())
        record = fill(self._record, outcome).model_copy(
            update={"sandbox_deleted": deleted, "command_ends": dict(ends), "setting": self._setting()}
        )
        await asyncio.to_thread(self._write, outcome, record)
        self.outcome = outcome
        return outcome

    def _setting(self) -> SettingRecord:
        """Return the setting with the networks that held in each phase that was reached."""
        networks = {
            f"{stage.step.name}/{phase}".lstrip("/"): NetworkRecord(
                mode=policy.mode.value, allowed_hosts=list(policy.allow)
            )
            for stage in self._reached
            for phase, policy in stage.networks.items()
        }
        return self._record.setting.model_copy(update={"networks": networks})

    def _usage(self) -> Usage | None:
        return add_usage([usage for stage in self._reached if (usage := stage.usage()) is not None])

    def _outcome(self) -> AttemptOutcome:
        scrub = self._bench.scrubber.text
        found = self._failure
        if found is not None:
            found = dataclasses.replace(found, message=scrub(found.message), detail=scrub(found.detail))
        whole = self._stages[0] if not self._task.steps else None
        phases = {**self._phases, **(whole.phases if whole else {})}
        counted = [steps for stage in self._reached if (steps := stage.steps()) is not None]
        return AttemptOutcome(
            number=self._number,
            started_at=self._started_at,
            finished_at=self._bench.now(),
            sandbox_id=self._spec.id,
            failure=found,
            rewards=self._rewards,
            usage=self._usage(),
            steps=sum(counted) if self._trial.model else None,
            phases=dict(sorted(phases.items(), key=lambda item: item[1].started_at)),
            step_outcomes=() if whole else tuple(stage.outcome() for stage in self._reached),
        )

    def _write(self, outcome: AttemptOutcome, record: AttemptRecord) -> None:
        """Write what is left to write; ``result.json`` last, since it says that all else is there."""
        folder = self._folder
        for stage in self._reached if self._task.steps else self._stages:
            with recording(stage.folder.agent_dir):
                stage.write_trajectory()
        if outcome.failure is not None:
            text = f"{outcome.failure.message} [{outcome.failure.code}]\n\n{outcome.failure.detail}"
            write_text(folder.path / "exception.txt", text)
        write_text(folder.path / "trial.log", "\n".join(self._lines) + "\n")
        make_private(folder.path)
        self._bench.scrubber.tree(folder.path)
        folder.write_attempt(record, durable=True)
        folder.write_result(dump(trial_result(self._bench.job, self._trial, outcome)))
