"""What ``task.toml`` and the folder say together: instruction, environments, verifiers, solutions, steps.

A step inherits what it leaves out. Must never read a file outside the task or raise for what it finds,
except FolderError.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from cloche.tasks.compose import Composed, read_compose
from cloche.tasks.environment import EnvironmentFields
from cloche.tasks.fields import Findings
from cloche.tasks.folder import Folder, strip_canary
from cloche.tasks.model import (
    AgentPhase,
    Doubt,
    Environment,
    EnvValue,
    Refusal,
    Service,
    Solution,
    Step,
    TaskNetwork,
    VerifierPhase,
)
from cloche.tasks.phases import VERIFIER_TIMEOUT_S, VerifierFields
from cloche.tasks.schema import Config, StepFields
from cloche.tasks.yaml import YamlError, parse

COMPOSE = "docker-compose.yaml"


class Parts:
    """The parts of one task. ``environment`` must be asked for before verifiers and steps."""

    def __init__(self, folder: Folder, config: Config, findings: Findings) -> None:
        """Read nothing yet; what is found wrong goes to ``findings``."""
        self._folder = folder
        self._config = config
        self._findings = findings
        self._environment = Environment()

    def _broken(self, name: str, code: str, message: str, hint: str = "") -> None:
        self._findings.broken.append(self._folder.broken(name, code, message, hint))

    def _refuse(self, name: str, code: str, message: str, hint: str = "", line: int | None = None) -> None:
        where = self._folder.where(name, line)
        self._findings.refused.append(Refusal(code=code, message=message, where=where, hint=hint))

    def _doubt(self, name: str, message: str) -> None:
        self._findings.doubts.append(
            Doubt(code="task/no_effect", message=message, where=self._folder.where(name))
        )

    def instruction(self, name: str, who: str) -> str:
        """Return what the agent is told, without canary comments."""
        text = self._folder.text(name)
        if text is None:
            hint = f"write what the agent is to do into {name}"
            self._broken(name, "task/no_instruction", f"{who} has no {name}", hint)
            return ""
        instruction = strip_canary(text.replace("\r", "\n"))
        if not instruction.strip():
            whose = "its" if who == "it" else "the"
            self._broken(name, "task/no_instruction", f"{whose} {name} is empty")
        return instruction

    def environment(self) -> Environment:
        """Return where the task takes place."""
        folder, fields = self._folder, self._config.environment
        environment = _from_fields(fields)
        dockerfile = folder.file("environment/Dockerfile")
        compose = folder.inside(f"environment/{COMPOSE}")
        if compose is not None:
            environment = self._composed(environment, dockerfile)
        elif fields.docker_image is None:
            environment = replace(environment, dockerfile=dockerfile)
        elif dockerfile is not None:
            message = "environment/Dockerfile is not used, because environment.docker_image names an image"
            self._doubt("environment/Dockerfile", message)
        elif folder.entries("environment"):
            folder.check_tree("environment")
            environment = replace(environment, upload_dir=folder.root / "environment")
        if environment.docker_image is None and environment.dockerfile is None and not self._image_told():
            message = "it names no image: neither environment/Dockerfile nor environment.docker_image"
            hint = "write environment/Dockerfile, or set docker_image in [environment]"
            self._broken("environment", "task/no_image", message, hint)
        self._environment = environment
        return environment

    def _image_told(self) -> bool:
        """Whether something has been found already that leaves the task without an image."""
        return any(refusal.code == "plan/compose" for refusal in self._findings.refused) or any(
            finding.code == "task/no_image" for finding in self._findings.broken
        )

    def _composed(self, environment: Environment, dockerfile: Path | None) -> Environment:
        """Lay what ``docker-compose.yaml`` says below what ``task.toml`` says."""
        name = f"environment/{COMPOSE}"
        try:
            found = read_compose(parse(self._folder.text(name) or ""))
        except YamlError as error:
            message = f"`{name}` cannot be read: {error}, line {error.line}"
            self._refuse(name, "plan/compose", message, "keep to plain YAML", error.line)
            return environment
        for unmapped in found.unmapped:
            message = f"its {COMPOSE} asks for what sandboxes do not have: {unmapped.message}"
            hint = "docs/tasks.md lists what is read of a service"
            self._refuse(name, "plan/compose", message, hint, unmapped.line)
        environment = self._composed_image(environment, found, dockerfile)
        no_network = found.no_network and not environment.network_stated
        return replace(
            environment,
            env={**self._composed_env(found), **environment.env},
            user=found.user,
            workdir=environment.workdir or found.workdir,
            cpus=environment.cpus or found.cpus,
            memory_bytes=environment.memory_bytes or found.memory_bytes,
            network=TaskNetwork.NO_NETWORK if no_network else environment.network,
            network_stated=environment.network_stated or no_network,
            healthcheck=environment.healthcheck or found.healthcheck,
            services=tuple(self._composed_service(service) for service in found.services),
        )

    def _composed_env(self, found: Composed) -> dict[str, EnvValue]:
        where = self._folder.where
        return {
            key: EnvValue(text=text, where=where(f"environment/{COMPOSE}", line))
            for key, (text, line) in found.env.items()
        }

    def _composed_service(self, found: Composed) -> Service:
        environment = Environment(
            build_timeout_s=self._config.environment.build_timeout_s,
            env=self._composed_env(found),
            user=found.user,
            workdir=found.workdir,
            cpus=found.cpus,
            memory_bytes=found.memory_bytes,
            healthcheck=found.healthcheck,
            network=self._config.environment.network,
            allowed_hosts=self._config.environment.allowed_hosts,
        )
        return Service(
            name=found.name,
            environment=self._composed_image(environment, found, None),
            entrypoint=found.entrypoint,
            command=found.command,
        )

    def _composed_image(
        self, environment: Environment, found: Composed, dockerfile: Path | None
    ) -> Environment:
        if found.context is not None:
            context = posixpath.normpath(f"environment/{found.context}")
            self._folder.check_tree(context)
            name = f"{context}/{found.dockerfile}"
            path = self._folder.file(name)
            if path is None:
                self._broken(name, "task/no_image", f"`{name}`, which {COMPOSE} builds, is not there")
            return replace(
                environment,
                docker_image=None,
                dockerfile=path,
                context_dir=self._folder.root / context,
                build_args=found.build_args,
            )
        if found.image is not None:
            return replace(environment, docker_image=found.image)
        return environment if environment.docker_image else replace(environment, dockerfile=dockerfile)

    def verifier(self, step: StepFields | None) -> VerifierPhase:
        """Return how the task, or a step of it, is graded."""
        own = self._config.verifier
        inner = step.verifier if step is not None else VerifierFields()
        tests = [f"steps/{step.name}/tests"] if step is not None else []
        tests.append("tests")
        for name in tests:
            self._folder.check_tree(name)
        separate = own.separate if inner.separate is None else inner.separate
        environment, bundled = (None, False)
        if separate and (step is not None or not self._config.steps):
            environment, bundled = self._own_environment(inner, own, tests)
        script_dir = next((name for name in tests if self._folder.file(f"{name}/test.sh")), None)
        if script_dir is None and not bundled and (step is not None or not self._config.steps):
            self._no_script(step)
        script_dir = script_dir or tests[-1]
        tests_dir = self._folder.root / (tests[0] if step and self._has(tests[0]) else tests[-1])
        shared = self._folder.root / "tests"
        return VerifierPhase(
            tests_dir=tests_dir,
            script=self._folder.root / script_dir / "test.sh",
            shared_tests_dir=shared if tests_dir != shared and self._has("tests") else None,
            timeout_s=inner.timeout_s or own.timeout_s or VERIFIER_TIMEOUT_S,
            user=inner.user or own.user,
            env={**own.env, **inner.env},
            collect=(*own.collect, *inner.collect),
            environment=environment,
            bundled=bundled,
            network=inner.network or own.network,
        )

    def _has(self, name: str) -> bool:
        path = self._folder.inside(name)
        return path is not None and path.is_dir()

    def _no_script(self, step: StepFields | None) -> None:
        if self._config.environment.windows:
            return
        hint = "write tests/test.sh; it leaves its verdict in /logs/verifier/reward.txt"
        if step is None:
            message = "it has no verifier: tests/test.sh is missing"
            self._broken("tests/test.sh", "task/no_verifier", message, hint)
            return
        name = f"steps/{step.name}/tests/test.sh"
        message = f"the step `{step.name}` has no verifier: neither {name} nor tests/test.sh is there"
        self._broken(name, "task/no_verifier", message, hint)

    def _own_environment(
        self, inner: VerifierFields, own: VerifierFields, tests: list[str]
    ) -> tuple[Environment, bool]:
        """Return the verifier's own environment, and whether its image holds the tests."""
        fields = inner.environment or own.environment or self._config.environment
        environment = _from_fields(fields)
        levels = [inner.environment, own.environment][-len(tests) :]
        for level, name in zip(levels, tests, strict=True):
            if self._folder.inside(f"{name}/{COMPOSE}") is not None:
                message = f"its verifier's environment is made by {COMPOSE}, which is not read there"
                self._refuse(f"{name}/{COMPOSE}", "plan/compose", message)
            if level is not None and level.docker_image:
                return replace(environment, docker_image=level.docker_image), True
            dockerfile = self._folder.file(f"{name}/Dockerfile")
            if dockerfile is not None:
                return replace(environment, docker_image=None, dockerfile=dockerfile), True
        task = self._environment
        shared = replace(
            environment,
            docker_image=task.docker_image,
            dockerfile=task.dockerfile,
            context_dir=task.context_dir,
            build_args=task.build_args,
            upload_dir=task.upload_dir,
            user=task.user,
        )
        return shared, False

    def solution(self, name: str, fallback: Solution | None = None) -> Solution:
        """Return the reference solution in a folder, else the ``fallback``."""
        self._folder.check_tree(name)
        present = self._folder.inside(name)
        if fallback is not None and present is None:
            return fallback
        return Solution(
            solution_dir=present if present is not None and present.is_dir() else None,
            script=self._folder.file(f"{name}/solve.sh"),
            env=self._config.solution_env,
        )

    @cached_property
    def _whole_solution(self) -> Solution:
        return self.solution("solution")

    def step(self, fields: StepFields) -> Step:
        """Return a step with all that it inherits."""
        base = f"steps/{fields.name}"
        config = self._config
        workdir = f"{base}/workdir"
        self._folder.check_tree(workdir)
        return Step(
            name=fields.name,
            instruction=self.instruction(f"{base}/instruction.md", f"the step `{fields.name}`"),
            agent=AgentPhase(
                timeout_s=fields.agent.timeout_s or config.agent.timeout_s,
                user=fields.agent.user or config.agent.user,
                network=fields.agent.network or config.agent.network,
            ),
            verifier=self.verifier(fields),
            solution=self.solution(f"{base}/solution", self._whole_solution),
            workdir_dir=self._folder.root / workdir if self._has(workdir) else None,
            setup=self._folder.file(f"{workdir}/setup.sh"),
            healthcheck=fields.healthcheck,
            artifacts=(*config.artifacts, *fields.artifacts),
            min_reward=fields.min_reward,
        )


def _from_fields(fields: EnvironmentFields) -> Environment:
    return Environment(
        docker_image=fields.docker_image,
        build_timeout_s=fields.build_timeout_s,
        cpus=fields.cpus,
        memory_bytes=fields.memory_bytes,
        storage_bytes=fields.storage_bytes,
        env=fields.env,
        workdir=fields.workdir,
        skills_dir=fields.skills_dir,
        healthcheck=fields.healthcheck,
        network=fields.network,
        network_stated=fields.network_stated,
        allowed_hosts=fields.allowed_hosts,
    )
