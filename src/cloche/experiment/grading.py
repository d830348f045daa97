"""Grading a stage: in the agent's sandbox, or in one of the verifier's own that gets only the artifacts.

Must never grade in a sandbox of its own while the agent's, if it is done with, still lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from cloche.core.errors import InfraError
from cloche.core.ids import new_id
from cloche.experiment.bench import Bench, sandbox_spec, within
from cloche.experiment.boxes import Boxes
from cloche.experiment.collect import Evidence, present
from cloche.experiment.services import begin, begin_again, end_all
from cloche.experiment.shield import to_the_end
from cloche.experiment.stage import Stage
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec
from cloche.tasks.model import Environment
from cloche.tasks.verify import VerifierResult, empty_folder, prepare_paths, verify

VERIFIER_SLACK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grader:
    """Grades the stages of one attempt; ``images`` has those of separate verifiers by step."""

    bench: Bench
    boxes: Boxes
    images: Mapping[str, PreparedImage]
    number: int

    async def grade(self, stage: Stage, sandbox: Sandbox, evidence: Evidence, *, last: bool) -> None:
        """Grade a stage and keep its rewards. Raises a VerifierError where there is no verdict."""
        environment = stage.step.verifier.environment
        if environment is not None and last:
            await self.boxes.delete(sandbox.id)
        async with stage.phase("verifier"):
            if environment is None:
                await stage.open_network(sandbox, "verifier", stage.step.verifier.network)
                result = await self._verify(stage, sandbox)
                if not last:
                    await end_all(sandbox)
                    await stage.open_network(sandbox, "environment", None)
                    await begin_again(sandbox, stage.task.environment, stage.log, stage.limits.start_s)
            else:
                result = await self._separately(stage, environment, evidence)
        stage.rewards = dict(result.rewards)
        for path in result.skipped:
            stage.log(f"{path} is neither a file nor a folder and was left")

    async def _verify(self, stage: Stage, sandbox: Sandbox) -> VerifierResult:
        limit_s = stage.limits.verifier_s
        grading = verify(
            stage.task,
            sandbox,
            stage.folder.verifier_dir,
            environ=self.bench.environ,
            phase=stage.step.verifier,
            timeout_s=limit_s,
        )
        return await within(limit_s + VERIFIER_SLACK_S, "verifier/timeout", grading)

    async def _separately(self, stage: Stage, environment: Environment, evidence: Evidence) -> VerifierResult:
        start_s, verifier_s = stage.limits.start_s, stage.limits.verifier_s
        spec = sandbox_spec(
            self.bench,
            stage.trial,
            environment,
            number=self.number,
            sandbox_id=new_id("sb"),
            total_s=start_s + verifier_s + VERIFIER_SLACK_S,
            role="verifier",
            network=stage.step.verifier.network,
        )
        stage.log(f"verifier: in a sandbox of its own, {spec.id}")
        stage.networks["verifier"] = spec.network
        try:
            starting = self._start(stage, environment, evidence, spec)
            sandbox = await within(start_s, "infra/sandbox_start_timeout", starting)
            return await self._verify(stage, sandbox)
        finally:
            await to_the_end(self.boxes.delete(spec.id))

    async def _start(
        self, stage: Stage, environment: Environment, evidence: Evidence, spec: SandboxSpec
    ) -> Sandbox:
        """Make the verifier's sandbox and bring it what was collected, each at the place it came from."""
        sandbox = await self.boxes.create(spec, self.images[stage.step.name])
        await prepare_paths(sandbox, stage.task, environment)
        await begin(sandbox, environment, stage.log)
        for place, path in await asyncio.to_thread(lambda: list(present(stage.folder, evidence))):
            if place.is_dir() and await sandbox.exists(path):
                await empty_folder(sandbox, path)
            await sandbox.upload(place, path)
            opened = Command(argv=("chmod", "-R", "a+rX", path), user="0", cwd="/", timeout_s=60.0)
            completed = await sandbox.run(opened)
            if not completed.ok:
                raise InfraError(f"{path} could not be opened: {completed.message or completed.stderr.text}")
        return sandbox
