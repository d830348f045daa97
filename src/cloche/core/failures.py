"""The table of everything that can go wrong with a trial, and how an error finds its row.

A row has a domain, a stable code, a meaning, whether another attempt is made, whether the verifier still
runs, and the exception name under which Harbor's files carry it. Must never turn an error that is not
understood into an agent's result: what is unknown is ``infra``, and ``infra`` is never a score.
The table for people is ``docs/failures.md``; a test compares both.
"""

from __future__ import annotations

import asyncio
import errno
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cloche.core.errors import ClocheError, Domain

DETAIL_LIMIT_CHARS = 16_384
UNREACHABLE_HINT = "check that the model's server runs, and that --base-url is its address"
_UNSUPPORTED = "ServiceOperationsUnsupportedError"

# reasons found when a run is planned: many codes of one kind
_FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    (
        "plan",
        "capability_missing compose deadlines gpu host_variable mcp_servers network_allowlist no_solution "
        "schema_version service tpu trajectory windows",
        "the task asks for what cannot be done here",
        _UNSUPPORTED,
    ),
    (
        "task",
        "encoding invalid link_cycle name no_config no_image no_instruction no_verifier path_escape range "
        "toml too_large type unreadable value",
        "the task cannot be understood",
        "BadRequestError",
    ),
    ("images", "mutable_tag not_allowed", "the image may not be used here", _UNSUPPORTED),
)


@dataclass(frozen=True, slots=True)
class FailureKind:
    """One row.

    ``retried``: the default policy makes another attempt. ``graded``: the verifier runs all the same, and
    its reward is the trial's verdict. ``harbor``: name of the exception in Harbor's ``result.json``.
    """

    code: str
    domain: Domain
    meaning: str
    harbor: str
    retried: bool = False
    graded: bool = False


def _rows() -> Iterator[FailureKind]:
    yield from _infra_rows()
    yield from _model_rows()
    yield from _agent_rows()
    yield from _other_rows()


def _infra_rows() -> Iterator[FailureKind]:
    again: tuple[tuple[str, str, str], ...] = (
        ("infra/unknown", "an error that nobody has classified yet", "RuntimeRequestError"),
        ("infra/internal", "a fault in cloche itself", "RuntimeRequestError"),
        ("infra/error", "something outside the agent and the task broke", "RuntimeRequestError"),
        ("infra/capacity", "the machine had no room for one more sandbox", "SandboxResourceExhaustedError"),
        ("infra/sandbox_start", "the sandbox did not come up", "SandboxUnavailableError"),
        (
            "infra/sandbox_start_timeout",
            "the sandbox did not come up in time",
            "EnvironmentStartTimeoutError",
        ),
        ("infra/sandbox_lost", "the sandbox ended before its work did", "SandboxUnavailableError"),
        ("infra/transport", "the connection to the sandbox failed", "SandboxUnavailableError"),
        (
            "infra/network_policy",
            "a sandbox's network policy could not be set or seen, so it has no network",
            "SandboxUnavailableError",
        ),
        ("infra/stopping", "the service is stopping, and did nothing", "SandboxUnavailableError"),
        ("infra/protocol", "the guest broke the protocol", "SandboxUnavailableError"),
        ("infra/request_timeout", "a request to the sandbox was not answered", "SandboxRequestTimeoutError"),
        ("infra/healthcheck", "the environment did not become healthy", "HealthcheckError"),
        ("infra/step_setup", "the step's setup.sh failed", "RuntimeRequestError"),
        ("infra/agent_setup", "the agent could not be prepared in the sandbox", "AgentSetupTimeoutError"),
        ("infra/agent_setup_timeout", "preparing the agent took too long", "AgentSetupTimeoutError"),
        ("infra/tests_upload", "the tests could not be put into the sandbox", "AddTestsDirError"),
        ("infra/verifier_download", "the verifier's files could not be fetched", "DownloadVerifierDirError"),
        ("infra/disk_full", "a disk of this machine is full", "RuntimeRequestError"),
        ("infra/no_descriptors", "this machine has no file descriptors left", "RuntimeRequestError"),
        ("infra/host_memory", "this machine has no memory left", "MemoryLimitExceededError"),
        ("infra/record", "the record could not be written", "RuntimeRequestError"),
        ("infra/runner_lost", "the runner ended in the middle of the attempt", "CancelledError"),
        ("infra/image_truncated", "an image's blob ended early", "SandboxBuildFailedError"),
        ("infra/image_pull_timeout", "pulling the image took too long", "EnvironmentStartTimeoutError"),
        ("infra/registry_unavailable", "the registry is down, or not reachable", "SandboxBuildFailedError"),
        ("infra/registry_rate_limit", "the registry said: too many requests", "SandboxBuildFailedError"),
    )
    for code, meaning, harbor in again:
        yield FailureKind(code, Domain.INFRA, meaning, harbor, retried=True)
    once: tuple[tuple[str, str, str], ...] = (
        ("infra/image", "the image could not be made or found", "SandboxBuildFailedError"),
        ("infra/image_not_found", "the registry has no such image", "SandboxBuildFailedError"),
        ("infra/image_unauthorised", "the registry refuses the image to us", "SandboxBuildFailedError"),
        ("infra/image_platform", "the image is not there for this platform", "SandboxBuildFailedError"),
        ("infra/image_digest", "an image's content is not what its digest says", "SandboxBuildFailedError"),
        ("infra/image_not_understood", "the registry's answer makes no sense", "SandboxBuildFailedError"),
        ("doctor/unusable", "this machine cannot run sandboxes", "SandboxUnavailableError"),
        ("doctor/no_guest", "this installation carries no guest for this machine", "SandboxUnavailableError"),
    )
    for code, meaning, harbor in once:
        yield FailureKind(code, Domain.INFRA, meaning, harbor)


def _model_rows() -> Iterator[FailureKind]:
    table: tuple[tuple[str, str, str, bool], ...] = (
        ("infra/model", "the model endpoint failed", "ApiError", True),
        ("infra/model_rate_limit", "the model endpoint said: too many requests", "ApiRateLimitError", True),
        ("infra/model_usage_limit", "the account's quota or credit is used up", "ApiUsageLimitError", True),
        ("infra/model_unavailable", "the model endpoint answered 5xx", "ApiInternalServerError", True),
        ("infra/model_connection", "no connection to the model endpoint", "ApiConnectionError", True),
        ("infra/model_timeout", "the model endpoint stopped answering", "ApiResponseStalledError", True),
        ("infra/model_response", "the model endpoint answered garbage", "UnknownApiError", True),
        ("infra/model_auth", "the model endpoint refused the key", "AgentAuthenticationError", False),
        ("infra/model_not_found", "the model endpoint knows no such model", "ModelNotFoundError", False),
        ("infra/model_bad_request", "the model endpoint refused the request", "BadRequestError", False),
    )
    for code, meaning, harbor, retried in table:
        yield FailureKind(code, Domain.INFRA, meaning, harbor, retried=retried)


def _agent_rows() -> Iterator[FailureKind]:
    table: tuple[tuple[str, str, str], ...] = (
        ("agent/timeout", "the agent was not done when its time was up", "AgentTimeoutError"),
        ("agent/exit_code", "the agent's program ended with an error status", "NonZeroAgentExitCodeError"),
        ("agent/out_of_memory", "the agent's program hit the memory limit", "NonZeroAgentExitCodeError"),
        ("agent/step_limit", "the agent used up its steps", "OutputLengthExceededError"),
        ("agent/context_limit", "the conversation outgrew the model's context", "ContextWindowExceededError"),
        ("agent/output_limit", "an answer was cut off at the output limit", "OutputTokenExceededError"),
        ("agent/malformed_tool_call", "the model's tool call was malformed", "OutputLengthExceededError"),
        ("agent/refusal", "the model refused the task", "AgentSafetyRefusalError"),
    )
    for code, meaning, harbor in table:
        yield FailureKind(code, Domain.AGENT, meaning, harbor, graded=True)


def _other_rows() -> Iterator[FailureKind]:
    verifier: tuple[tuple[str, str, str], ...] = (
        ("verifier/error", "the verifier gave no verdict", "VerifierOutputParseError"),
        ("verifier/timeout", "the verifier did not end in time", "VerifierTimeoutError"),
        ("verifier/not_run", "the test script could not be run", "RewardFileNotFoundError"),
        ("verifier/reward_missing", "there is no reward file", "RewardFileNotFoundError"),
        ("verifier/reward_empty", "the reward file is empty", "RewardFileEmptyError"),
        (
            "verifier/reward_invalid",
            "the reward is no flat set of finite numbers",
            "VerifierOutputParseError",
        ),
    )
    for code, meaning, harbor in verifier:
        yield FailureKind(code, Domain.VERIFIER, meaning, harbor)
    for code, meaning in (
        ("budget/money", "the money for it is spent"),
        ("budget/tokens", "the tokens for it are used up"),
        ("budget/time", "the time for the whole run is up"),
    ):
        yield FailureKind(code, Domain.BUDGET, meaning, "BudgetExceededError")
    user: tuple[tuple[str, str, str], ...] = (
        ("user/usage", "the command was used wrongly", "BadRequestError"),
        ("user/invalid_input", "a value, a file or a field is wrong", "BadRequestError"),
        ("user/not_found", "there is nothing of that name", "NotFoundError"),
        ("user/conflict", "what is there already stands against it", "BadRequestError"),
        ("user/quota", "the key has used up what it may ask for", "BadRequestError"),
        ("user/rate", "more requests than the key may make", "BadRequestError"),
        ("user/unauthorised", "the request carries no key, or one that is not known", "BadRequestError"),
        ("user/forbidden", "the key may not do that", "BadRequestError"),
        ("user/method", "the path does not know that method", "BadRequestError"),
        ("user/too_large", "the body is too large", "BadRequestError"),
        ("user/media_type", "the body is of another type than is wanted", "BadRequestError"),
        ("user/range", "the file has no such range", "BadRequestError"),
        ("user/interrupted", "somebody stopped the run", "CancelledError"),
        ("plan/refused", "the plan asks for what cannot be done here", _UNSUPPORTED),
    )
    for code, meaning, harbor in user:
        yield FailureKind(code, Domain.USER, meaning, harbor)
    for prefix, names, meaning, harbor in _FAMILIES:
        for name in names.split():
            yield FailureKind(f"{prefix}/{name}", Domain.USER, meaning, harbor)


FAILURES: Mapping[str, FailureKind] = MappingProxyType({row.code: row for row in _rows()})

UNKNOWN = FAILURES["infra/unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What happened to one attempt: its row, one line, and a traceback where there is one.

    ``retry_after_s`` is how long the other side asked us to wait, where it did.
    """

    kind: FailureKind
    message: str
    detail: str = ""
    retry_after_s: float | None = None

    @property
    def code(self) -> str:
        """The stable code, ``domain/name``."""
        return self.kind.code

    @property
    def domain(self) -> Domain:
        """Whose doing it is."""
        return self.kind.domain


def failure(code: str, message: str = "", *, detail: str = "") -> Failure:
    """Return a failure of a known code; raises KeyError for one that is not in the table."""
    kind = FAILURES[code]
    return Failure(kind=kind, message=message or kind.meaning, detail=detail)


def first_cause(error: BaseException) -> BaseException:
    """Return the error inside nested groups that says most: the first that is not a cancellation."""
    while isinstance(error, BaseExceptionGroup):
        parts = error.exceptions
        error = next((part for part in parts if not isinstance(part, asyncio.CancelledError)), parts[0])
    return error


def _kind_of_cloche_error(error: ClocheError) -> FailureKind:
    codes: list[str] = [error.code, *(getattr(cls, "code", "") for cls in type(error).__mro__)]
    return next((FAILURES[code] for code in codes if code in FAILURES), UNKNOWN)


def _kind_of_os_error(error: OSError) -> FailureKind:
    codes = {
        errno.ENOSPC: "infra/disk_full",
        errno.EDQUOT: "infra/disk_full",
        errno.EMFILE: "infra/no_descriptors",
        errno.ENFILE: "infra/no_descriptors",
        errno.ENOMEM: "infra/host_memory",
    }
    if isinstance(error, ConnectionError):
        return FAILURES["infra/transport"]
    if isinstance(error, TimeoutError):
        return FAILURES["infra/request_timeout"]
    return FAILURES[codes.get(error.errno or 0, UNKNOWN.code)]


def _kind(error: BaseException) -> FailureKind:
    match error:
        case ClocheError():
            return _kind_of_cloche_error(error)
        case OSError():
            return _kind_of_os_error(error)
        case MemoryError():
            return FAILURES["infra/host_memory"]
        case asyncio.CancelledError() | KeyboardInterrupt():
            return FAILURES["user/interrupted"]
        case _:
            return UNKNOWN


def classify(error: BaseException) -> Failure:
    """Find an error's row.

    A ``ClocheError`` goes by its own code, then by its classes' codes; an operating system's error by its
    number; a bare time-out of an inner call is a request's, never the agent's. All else is unknown.
    """
    cause = first_cause(error)
    kind = _kind(cause)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    message = lines[0] if lines else kind.meaning
    if kind is UNKNOWN:
        message = ": ".join([type(cause).__name__, *lines[:1]])
    detail = "".join(traceback.format_exception(error))[-DETAIL_LIMIT_CHARS:]
    after = getattr(cause, "retry_after_s", None)
    return Failure(
        kind=kind,
        message=message,
        detail=detail,
        retry_after_s=float(after) if isinstance(after, int | float) else None,
    )
