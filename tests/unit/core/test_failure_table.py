"""The failure table: every error finds a row, the unknown is never a score, the page lists every code."""

from __future__ import annotations

import ast
import asyncio
import errno
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import (
    ClocheError,
    Domain,
    EnvironmentUnusable,
    InfraError,
    InvalidInput,
    ModelError,
    PlanRefused,
    SandboxLost,
)
from cloche.core.failures import DETAIL_LIMIT_CHARS, FAILURES, UNKNOWN, classify, failure, first_cause

ROOT = Path(__file__).resolve().parents[3]
CODE = re.compile(r"(infra|agent|verifier|budget|user|plan|doctor|task|images)/[a-z_]+")
ROW = re.compile(r"^\| `([a-z]+/[a-z_]+)` \| ([^|]+) \| (yes|no) \| (yes|no) \| `(\w+)` \|$")
PREFIXES = {"images": Domain.USER, "plan": Domain.USER, "task": Domain.USER, "doctor": Domain.INFRA}

# what Harbor 0.26 knows, by (retried, graded, reward counts): harbor/models/trial/error_policy.py
HARBOR_VALID = {
    "NonZeroAgentExitCodeError",
    "AgentTimeoutError",
    "ContextWindowExceededError",
    "OutputTokenExceededError",
    "ContextLengthExceededError",
    "OutputLengthExceededError",
    "AgentSafetyRefusalError",
    "ContentPolicyViolationError",
}
# findings about a task that do not keep it from running
DOUBTS = {"plan/storage_not_enforced", "task/deadlines", "task/no_effect", "task/overlap", "task/unknown_key"}


def test_codes_are_unique_and_say_their_domain() -> None:
    for code, kind in FAILURES.items():
        assert code == kind.code
        assert CODE.fullmatch(code)
        prefix = code.partition("/")[0]
        assert kind.domain == PREFIXES.get(prefix, prefix)


def test_only_agent_failures_are_graded_and_only_infrastructure_is_tried_again() -> None:
    for kind in FAILURES.values():
        assert kind.graded == (kind.domain is Domain.AGENT)
        assert not kind.retried or kind.domain is Domain.INFRA


def test_a_reward_counts_to_harbor_exactly_when_it_counts_to_us() -> None:
    for kind in FAILURES.values():
        assert (kind.harbor in HARBOR_VALID) == (kind.domain is Domain.AGENT), kind.code


def test_the_page_lists_every_code_as_the_table_has_it() -> None:
    lines = (ROOT / "docs" / "failures.md").read_text().splitlines()
    listed = {match[1]: match.groups() for line in lines if (match := ROW.match(line))}
    assert list(listed) == list(FAILURES)
    for code, (_, meaning, retried, graded, harbor) in listed.items():
        kind = FAILURES[code]
        assert meaning == kind.meaning
        assert (retried == "yes", graded == "yes", harbor) == (kind.retried, kind.graded, kind.harbor)


def test_every_code_in_the_source_stands_in_the_table() -> None:
    missing = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                code = node.value
                if CODE.fullmatch(code) and code not in FAILURES and code not in DOUBTS:
                    missing[code] = f"{path.relative_to(ROOT)}:{node.lineno}"
    assert not missing


def test_an_error_goes_by_its_own_code_then_by_its_classes() -> None:
    assert classify(ModelError("slow down", code="infra/model_rate_limit")).code == "infra/model_rate_limit"
    assert classify(ModelError("odd", code="infra/something_new")).code == "infra/model"
    assert classify(SandboxLost()).code == "infra/sandbox_lost"
    assert classify(PlanRefused("no", code="plan/brand_new")).code == "plan/refused"
    assert classify(EnvironmentUnusable("no")).code == "doctor/unusable"
    assert classify(InvalidInput("no")).domain is Domain.USER


def test_an_error_class_with_a_code_of_nobody_is_not_the_agents() -> None:
    class Strange(ClocheError):
        """Strange."""

        code = "agent/never_heard_of"
        domain = Domain.AGENT

    assert classify(Strange()).domain is Domain.INFRA
    assert not classify(Strange()).kind.graded


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "infra/disk_full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "infra/disk_full"),
        (OSError(errno.EMFILE, "Too many open files"), "infra/no_descriptors"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "infra/host_memory"),
        (OSError(errno.EIO, "Input/output error"), "infra/unknown"),
        (OSError("no number"), "infra/unknown"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "infra/transport"),
        (BrokenPipeError(), "infra/transport"),
        (TimeoutError(), "infra/request_timeout"),
        (MemoryError(), "infra/host_memory"),
        (asyncio.CancelledError(), "user/interrupted"),
        (KeyboardInterrupt(), "user/interrupted"),
        (ZeroDivisionError("division by zero"), "infra/unknown"),
        (AssertionError(), "infra/unknown"),
    ],
)
def test_errors_of_others(error: BaseException, code: str) -> None:
    found = classify(error)
    assert found.code == code
    assert found.message


@given(st.sampled_from([ValueError, KeyError, RuntimeError, AttributeError, Exception]), st.text())
def test_whatever_is_raised_is_never_a_score(kind: type[Exception], text: str) -> None:
    found = classify(kind(text))
    assert found.kind is UNKNOWN
    assert found.domain is Domain.INFRA
    assert not found.kind.graded
    assert "\n" not in found.message
    assert kind.__name__ in found.message


def test_a_group_goes_by_its_first_cause_that_is_no_cancellation() -> None:
    inner = ExceptionGroup("inner", [SandboxLost("gone")])
    group = BaseExceptionGroup("outer", [asyncio.CancelledError(), inner])
    assert isinstance(first_cause(group), SandboxLost)
    assert classify(group).code == "infra/sandbox_lost"
    assert classify(BaseExceptionGroup("all", [asyncio.CancelledError()])).code == "user/interrupted"


def test_the_traceback_is_kept_and_bounded() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise RuntimeError("x" * 100_000)
        deep(n - 1)

    with pytest.raises(RuntimeError) as caught:
        deep(50)
    found = classify(caught.value)
    assert len(found.detail) == DETAIL_LIMIT_CHARS
    assert "in deep" in classify(ZeroDivisionError("x").with_traceback(caught.tb)).detail


def test_what_the_other_side_asked_to_wait_is_kept() -> None:
    error = ModelError("slow down", code="infra/model_rate_limit")
    error.retry_after_s = 7  # type: ignore[attr-defined]
    assert classify(error).retry_after_s == 7.0
    assert classify(InfraError("x")).retry_after_s is None


def test_a_message_of_many_lines_becomes_one() -> None:
    assert classify(InfraError("building failed\n  step 3\n  no such file")).message == "building failed"


def test_a_failure_can_be_made_of_a_known_code_alone() -> None:
    assert failure("agent/timeout").message == FAILURES["agent/timeout"].meaning
    with pytest.raises(KeyError):
        failure("agent/nonsense")


def test_an_error_without_words_has_those_of_its_row() -> None:
    assert classify(asyncio.CancelledError()).message == "somebody stopped the run"
    assert classify(KeyboardInterrupt()).message == "somebody stopped the run"
    assert classify(ZeroDivisionError()).message == "ZeroDivisionError"


def test_every_code_about_images_is_produced_somewhere() -> None:
    used: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        if path.name != "failures.py":
            nodes = ast.walk(ast.parse(path.read_text()))
            used |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    codes = {code for code in FAILURES if code.startswith(("infra/image", "infra/registry"))}
    assert codes
    assert sorted(codes - used) == []
