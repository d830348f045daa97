"""A whole run on a folder: locked, opened, what an earlier run left alive removed, run, accounted for.

Must never report a number of sandboxes that it has not counted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloche.core.failures import Failure
from cloche.core.outcome import TrialOutcome
from cloche.core.schedule import Stop
from cloche.core.verdict import exit_status, unusable
from cloche.experiment.bench import Bench
from cloche.experiment.images import Prepare
from cloche.experiment.plan import Plan, for_driver
from cloche.experiment.record.attempt import when
from cloche.experiment.record.export import Job, dump, job_config, job_lock, job_result
from cloche.experiment.record.files import locked, make_folder, write_json
from cloche.experiment.record.folder import JOB_RESULT, ExperimentRecord, JobFolder, counts_by_code
from cloche.experiment.record.trial import RESULT
from cloche.experiment.runner import Runner, Watch
from cloche.experiment.secrets import Scrubber, secret_values
from cloche.experiment.shield import thread_to_the_end
from cloche.report.numbers import wilson
from cloche.report.summary import Summary, summarise
from cloche.sandbox.driver import Driver

DELETES_AT_ONCE = 16
COUNT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a run came to. ``sandboxes_left`` is ``None`` when they could not be counted."""

    outcomes: list[TrialOutcome]
    status: int
    sandboxes_left: int | None
    seconds: float
    unusable: Failure | None = None


class Session:
    """One run of a plan on a folder, with a driver that somebody else made and closes."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        driver: Driver,
        prepare: Prepare,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Touch nothing yet."""
        self._plan = for_driver(plan, driver.name, driver.capabilities())
        self._folder = JobFolder(folder)
        self._driver = driver
        self._prepare = prepare
        self._environ = os.environ if environ is None else environ
        self._runner: Runner | None = None
        self._stop = Stop.RUNNING

    @property
    def stop(self) -> Stop:
        """How far the run is being stopped."""
        return self._runner.stop if self._runner else self._stop

    def halt(self, stop: Stop) -> None:
        """Stop the run so far; also before it has begun to run trials."""
        self._stop = max(self._stop, stop)
        if self._runner is not None:
            self._runner.halt(stop)

    async def run(self, watch: Watch, known: Callable[[TrialOutcome], None]) -> Ending:
        """Run what has no verdict; ``known`` is told each trial that already has one.

        Raises InvalidInput for a folder that is not ours or in use, RecordError when it cannot be written.
        """
        began_s = time.monotonic()
        await thread_to_the_end(self._folder.check)
        await thread_to_the_end(make_folder, self._folder.path)
        with locked(self._folder.path):
            record, outcomes = await thread_to_the_end(self._open)
            await self._remove_survivors(record)
            for outcome in outcomes.values():
                if outcome.graded or outcome.refusal is not None:
                    known(outcome)
            await self._run_trials(record, outcomes, watch)
            every = await thread_to_the_end(self._folder.outcomes, record)
            ending = Ending(
                outcomes=every,
                status=exit_status(every, self.stop, self._runner.exhausted if self._runner else None),
                sandboxes_left=await self._count_left(record),
                seconds=time.monotonic() - began_s,
                unusable=unusable(every),
            )
            await thread_to_the_end(self._close, record, ending)
        return ending

    def _open(self) -> tuple[ExperimentRecord, dict[str, TrialOutcome]]:
        now = when(time.time())
        record = self._folder.open(self._plan, now)
        job = self._job(record)
        (self._folder.path / JOB_RESULT).unlink(missing_ok=True)  # it tells of a run that has ended
        write_json(self._folder.path / "config.json", dump(job_config(job)))
        write_json(self._folder.path / "lock.json", dump(job_lock(job, now)))
        names = {trial.name for trial in self._plan.trials}
        for name in names:
            self._folder.trial(name).finish_moving()
        outcomes = {trial.name: self._folder.outcome(trial) for trial in record.trials if trial.name in names}
        self._write_job_result(job, record, list(outcomes.values()), finished=False)
        todo = sum(not outcome.graded for outcome in outcomes.values())
        self._folder.log(f"{now.isoformat()} run: {len(outcomes)} trials, {todo} without a verdict")
        return record, outcomes

    def _job(self, record: ExperimentRecord) -> Job:
        return Job(id=record.id, folder=self._folder.path, plan=self._plan)

    async def _run_trials(
        self, record: ExperimentRecord, outcomes: dict[str, TrialOutcome], watch: Watch
    ) -> None:
        scrubber = Scrubber(secret_values(self._plan, self._environ))
        bench = Bench(driver=self._driver, job=self._job(record), scrubber=scrubber, environ=self._environ)
        self._runner = Runner(bench, self._prepare, outcomes, watch)
        self._runner.halt(self._stop)
        await self._runner.run()

    async def _mine(self, record: ExperimentRecord) -> list[str]:
        wanted = str(record.id)
        return [info.id for info in await self._driver.list() if info.labels.get("experiment") == wanted]

    async def _remove_survivors(self, record: ExperimentRecord) -> None:
        """Delete what a runner that was killed has left alive; its attempts stay on record."""
        places = asyncio.Semaphore(DELETES_AT_ONCE)

        async def remove(sandbox_id: str) -> None:
            async with places:
                await self._driver.delete(sandbox_id)

        async with asyncio.TaskGroup() as group:
            for sandbox_id in await self._mine(record):
                group.create_task(remove(sandbox_id))

    async def delete_all(self) -> None:
        """Delete every sandbox of this experiment now, whatever its trial is doing: the last resort."""
        record = await asyncio.to_thread(self._folder.read)
        await self._remove_survivors(record)

    async def _count_left(self, record: ExperimentRecord) -> int | None:
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                return len(await self._mine(record))
        except TimeoutError:
            return None

    def _write_job_result(
        self, job: Job, record: ExperimentRecord, outcomes: list[TrialOutcome], *, finished: bool
    ) -> None:
        result = job_result(
            job, outcomes, started_at=record.created_at, now=when(time.time()), finished=finished
        )
        write_json(self._folder.path / RESULT, dump(result), durable=finished)

    def _close(self, record: ExperimentRecord, ending: Ending) -> None:
        self._write_job_result(self._job(record), record, ending.outcomes, finished=True)
        summary = summarise(ending.outcomes)
        write_json(self._folder.path / JOB_RESULT, job_summary(record, ending, summary), durable=True)
        whole = summary.whole
        self._folder.log(
            f"{when(time.time()).isoformat()} over: {whole.graded}/{whole.trials} graded, "
            f"{whole.attempts} attempts, status {ending.status}"
        )


def job_summary(record: ExperimentRecord, ending: Ending, summary: Summary) -> dict[str, object]:
    """Return ``job-result.json``: our figures, every rate with its n and its 95 % interval."""
    whole = summary.whole
    usage = whole.usage
    return {
        "format": "cloche-job-result/1",
        "id": str(record.id),
        "status": ending.status,
        "trials": whole.trials,
        "graded": whole.graded,
        "solved": whole.solved,
        "solved_interval_95": list(wilson(whole.solved, whole.graded)),
        "without_verdict": counts_by_code(ending.outcomes),
        "attempts": whole.attempts,
        "sandboxes_left": ending.sandboxes_left,
        "seconds": round(ending.seconds, 3),
        "input_tokens": usage.input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "cost_usd": usage.cost_usd if usage else None,
        "columns": [
            {
                "agent": column.agent,
                "model": column.model,
                "trials": totals.trials,
                "graded": totals.graded,
                "solved": totals.solved,
                "solved_interval_95": list(wilson(totals.solved, totals.graded)),
            }
            for column, totals in summary.totals.items()
        ],
    }
