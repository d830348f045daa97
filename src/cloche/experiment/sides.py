"""The sandboxes of a task's services beside the agent's: one unit with it, ready before it is made.

Must never outlive the attempt: they are made through its ``Boxes``, which delete whatever is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cloche.core.errors import InfraError
from cloche.core.ids import new_id
from cloche.experiment.bench import Bench, sandbox_spec
from cloche.experiment.boxes import Boxes
from cloche.experiment.plan import PlannedTrial
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec, Unit
from cloche.tasks.health import wait_until_healthy
from cloche.tasks.model import Service, Task
from cloche.tasks.verify import workdir_of

MAIN = "main"


@dataclass(slots=True, kw_only=True)
class Sides:
    """The services of one attempt; ``images`` has theirs by name, ``unit_id`` is the agent's sandbox's."""

    bench: Bench
    trial: PlannedTrial
    task: Task
    boxes: Boxes
    images: Mapping[str, PreparedImage]
    number: int
    unit_id: str
    total_s: float | None
    log: Callable[[str], None]
    ids: list[str] = field(default_factory=list)

    def join(self, spec: SandboxSpec, name: str = MAIN) -> SandboxSpec:
        """Return the spec as a member of the unit, unchanged where the task has no services."""
        services = self.task.environment.services
        if not services:
            return spec
        members = (MAIN, *(service.name for service in services))
        return replace(spec, unit=Unit(id=self.unit_id, name=name, members=members))

    async def start(self) -> None:
        """Make and start every service, each healthy before those after it. Raises InfraError."""
        for service in self.task.environment.services:
            spec = sandbox_spec(
                self.bench,
                self.trial,
                service.environment,
                number=self.number,
                sandbox_id=new_id("sb"),
                total_s=self.total_s,
                role=f"service-{service.name}",
                network=self.task.environment.policy,
            )
            spec = replace(self.join(spec, service.name), hostname=service.name)
            self.log(f"service {service.name}: in a sandbox of its own, {spec.id}")
            sandbox = await self.boxes.create(spec, self.images[service.name])
            self.ids.append(spec.id)
            await self._run(service, sandbox)

    async def _run(self, service: Service, sandbox: Sandbox) -> None:
        """Start what a service runs, with the meaning that ``docker run`` gives it."""
        image = sandbox.image
        entrypoint = image.entrypoint if service.entrypoint is None else service.entrypoint
        command = image.cmd if service.command is None and service.entrypoint is None else service.command
        argv = (*entrypoint, *(command or ()))
        if not argv:
            raise InfraError(f"the service `{service.name}` and its image name nothing to run")
        cwd = workdir_of(service.environment, sandbox)
        await sandbox.start(Command(id=new_id("service"), argv=argv, cwd=cwd))
        if service.environment.healthcheck is not None:
            tries = await wait_until_healthy(sandbox, service.environment.healthcheck, cwd=cwd)
            self.log(f"service {service.name}: healthy after {tries} tries")
