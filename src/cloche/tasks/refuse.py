"""What stands between a task and its execution here, and the values that it takes from the host.

Must never run anything: it is asked when a run is planned, before the first sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from cloche.core.errors import PlanRefused
from cloche.sandbox.driver import Capability
from cloche.sandbox.spec import NetworkMode
from cloche.tasks.model import Env, Refusal, Task

_FROM_HOST = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


def _missing(env: Env, environ: Mapping[str, str]) -> list[Refusal]:
    found = []
    for name, value in env.items():
        match = _FROM_HOST.fullmatch(value.text)
        if match and match[2] is None and match[1] not in environ:
            message = f"its variable `{name}` comes from `{match[1]}` of the host, which is not set"
            hint = f"export {match[1]}, or write ${{{match[1]}:-default}}"
            found.append(Refusal(code="plan/host_variable", message=message, where=value.where, hint=hint))
    return found


def refusals(task: Task, environ: Mapping[str, str] | None = None) -> list[Refusal]:
    """Return every reason why the task cannot be executed here; none means that it can.

    ``environ`` is the host's environment (default: this process's), from which ``${VAR}`` is taken.
    """
    host = os.environ if environ is None else environ
    found = list(task.refused)
    for env in environments(task):
        found += [refusal for refusal in _missing(env, host) if refusal not in found]
    return found


def environments(task: Task) -> Iterator[Env]:
    """Yield every table of variables that a run of the task may use, those of its steps too."""
    yield task.environment.env
    yield from (service.environment.env for service in task.environment.services)
    for stage in task.stages:
        yield stage.verifier.env
        yield stage.solution.env
        if stage.verifier.environment is not None:
            yield stage.verifier.environment.env


def needs(task: Task) -> frozenset[Capability]:
    """Return what a driver must be able to do, beyond running commands, to execute a task."""
    own = task.environment.policy
    policies = [own]
    found = {Capability.UNIT} if task.environment.services else set()
    for stage in task.stages:
        place = stage.verifier.environment.policy if stage.verifier.environment else own
        grading = place if stage.verifier.network is None else stage.verifier.network
        working = own if stage.agent.network is None else stage.agent.network
        policies += [working, grading]
        if working != own or (not stage.verifier.separate and grading != own):
            found.add(Capability.NETWORK_SWITCH)
    modes = {policy.mode for policy in policies}
    found |= {Capability(mode.value) for mode in modes - {NetworkMode.NONE}}
    return frozenset(found)


def refused(task: Task, refusal: Refusal) -> PlanRefused:
    """Return the refusal as the error that people see."""
    return PlanRefused(
        f"task `{task.name}` cannot start: {refusal.message}",
        hint=refusal.hint or None,
        where=refusal.where,
        code=refusal.code,
    )


def resolve_env(env: Env, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables with ``${VAR}`` and ``${VAR:-default}`` filled in from the host.

    Only a value that is wholly such a reference is replaced. Raises PlanRefused where one is missing,
    which :func:`refusals` has told before.
    """
    host = os.environ if environ is None else environ
    missing = _missing(env, host)
    if missing:
        raise PlanRefused(
            missing[0].message, hint=missing[0].hint, where=missing[0].where, code=missing[0].code
        )
    resolved = {}
    for name, value in env.items():
        match = _FROM_HOST.fullmatch(value.text)
        resolved[name] = host.get(match[1], match[2] or "") if match else value.text
    return resolved
