"""What an agent is, and what it is given.

An agent changes its context in place while it works, so that whoever stops it finds true counts and a true
trajectory. Must never hold a secret: a model's key is named by its environment variable, not carried.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloche.agents.clock import Clock, SystemClock
from cloche.agents.trajectory import TrajectoryBuilder
from cloche.agents.usage import UsageMeter
from cloche.core.errors import InvalidInput

if TYPE_CHECKING:
    from cloche.sandbox.handle import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """Where a model answers, in OpenAI's chat format.

    ``base_url`` is what ``/chat/completions`` is appended to. ``api_key_env`` names the environment variable
    that holds the key; without it, or when it is unset, no key is sent. ``parameters`` go into every request
    as they are (``temperature``, ``max_tokens`` …). ``stall_timeout_s`` bounds the silence before and within
    an answer, not the answer.
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = True
    connect_timeout_s: float = 30.0
    stall_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run of the loop; ``None`` means none of its own.

    ``tokens`` counts prompt and completion tokens of all calls together, as far as the endpoint told them.
    ``command_s`` bounds every command, ``tool_output_bytes`` what the model sees of each: half of it from
    the beginning, half from the end.
    """

    steps: int = 100
    tokens: int | None = None
    seconds: float | None = None
    command_s: float = 120.0
    tool_output_bytes: int = 16_384
    parallel_calls: int = 8


@dataclass(slots=True, kw_only=True)
class AgentContext:
    """One attempt as the agent sees it.

    ``user``, ``workdir`` and ``env`` hold for everything that the agent runs inside; ``None`` is the
    sandbox's own. ``logs_dir`` is a folder of the host, which exists. ``solution_dir`` and ``solution_env``
    are the task's reference solution, for the oracle alone. ``skills_dir`` is a folder inside that holds
    skills, if the task brings any. ``usage`` and ``trajectory`` grow as it works.
    """

    logs_dir: Path
    trajectory: TrajectoryBuilder
    user: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    model: ModelEndpoint | None = None
    limits: Limits = field(default_factory=Limits)
    solution_dir: Path | None = None
    solution_env: Mapping[str, str] = field(default_factory=dict)
    skills_dir: str | None = None
    usage: UsageMeter = field(default_factory=UsageMeter)
    clock: Clock = field(default_factory=SystemClock)


class Agent(Protocol):
    """Tries to do a task. One instance may run many attempts at once, so it keeps nothing of them."""

    @property
    def name(self) -> str:
        """The name under which it is asked for."""

    @property
    def version(self) -> str:
        """Changes whenever its behaviour does."""

    @property
    def needs_model(self) -> bool:
        """Whether a context without a model endpoint is of no use to it."""

    async def setup(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Make the sandbox ready; called before each step of a task in steps.

        Raises ClocheError; InvalidInput where the context lacks something.
        """

    async def run(self, instruction: str, sandbox: Sandbox, context: AgentContext) -> None:
        """Work until done.

        Raises ClocheError of the agent's domain for what the agent ran into (a limit, its model's doing),
        ModelError for the endpoint's trouble, SandboxLost and other InfraErrors as they come.
        """


_AGENTS: Mapping[str, tuple[str, str]] = {
    "loop": ("cloche.agents.loop", "LoopAgent"),
    "nop": ("cloche.agents.nop", "NopAgent"),
    "oracle": ("cloche.agents.oracle", "OracleAgent"),
}


def agent_names() -> tuple[str, ...]:
    """Return the names that ``get_agent`` knows, sorted."""
    return tuple(sorted(_AGENTS))


def get_agent(name: str) -> Agent:
    """Return the agent of that name; raises InvalidInput that names the nearest one."""
    if name not in _AGENTS:
        near = difflib.get_close_matches(name, _AGENTS, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(agent_names())}"
        raise InvalidInput(f"there is no agent `{name}`", hint=hint)
    module, factory = _AGENTS[name]
    make: Callable[[], Agent] = getattr(import_module(module), factory)
    return make()
