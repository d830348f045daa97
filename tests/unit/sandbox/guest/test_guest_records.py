"""What is made of the guest's answers: head and tail of streams, ends, files; what a start says."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import ClocheError, InfraError, InvalidInput, NotFound
from cloche.sandbox.guest.errors import RequestFailed, as_error, from_fields
from cloche.sandbox.guest.frames import Code, Tag, decode_fields, encode_fields
from cloche.sandbox.guest.process import OomWatch
from cloche.sandbox.guest.records import Collector, EndRecord, command_status, end_record, file_info
from cloche.sandbox.guest.start import DEFAULT_PATH, environment, start_fields
from cloche.sandbox.spec import Command, EndReason, ImageConfig, SandboxSpec, Terminal


@given(st.integers(0, 40), st.lists(st.binary(max_size=30), max_size=12))
def test_head_and_tail_of_a_whole_stream(cap: int, pieces: list[bytes]) -> None:
    collector, offset = Collector(cap), 0
    for piece in pieces:
        collector.add(offset, piece)
        offset += len(piece)
    whole, output = b"".join(pieces), collector.output()
    head = whole[: cap // 2]
    rest = whole[len(head) :]
    tail_max = cap - cap // 2
    assert output.head == head
    assert output.tail == (rest[-tail_max:] if tail_max else b"")
    assert output.total_bytes == len(whole)
    assert output.truncated == (len(whole) > cap)


@given(st.integers(2, 40), st.binary(min_size=0, max_size=20), st.integers(1, 1000), st.binary(max_size=20))
def test_a_gap_ends_the_head(cap: int, before: bytes, gap: int, after: bytes) -> None:
    collector = Collector(cap)
    collector.add(0, before)
    collector.add(len(before) + gap, after)
    total = len(before) + gap + len(after)
    output = collector.output(total)
    assert output.head == before[: cap // 2]
    assert output.tail == after[-(cap - cap // 2) :]
    assert output.total_bytes == total


def test_the_missing_middle_is_said() -> None:
    collector = Collector(4)
    collector.add(0, b"abcdefgh")
    assert collector.output().data == b"ab\n[... 4 bytes left out ...]\ngh"


def test_an_end_that_was_a_signal() -> None:
    fields = decode_fields(
        encode_fields([(Tag.REASON, 2), (Tag.SIGNAL, 9), (Tag.UNEXPECTED, 1), (Tag.CPU_US, 1500)])
    )
    end = end_record(fields)
    assert end == EndRecord(reason=EndReason.SIGNAL, signal=9, unexpected=True, cpu_s=0.0015)


def test_a_row_of_the_table() -> None:
    fields = [
        (Tag.COMMAND, "c"),
        (Tag.RUNNING, 0),
        (Tag.STARTED_MS, 1500),
        (Tag.TOTAL_BYTES, 1),
        (Tag.TOTAL_BYTES, 2),
    ]
    status = command_status(encode_fields([*fields, (Tag.REASON, 1), (Tag.EXIT_CODE, 3)]))
    assert (status.id, status.running, status.started_at, status.pid) == ("c", False, 1.5, None)
    assert (status.stdout_bytes, status.stderr_bytes) == (1, 2)
    assert status.end is not None
    assert status.end.exit_code == 3


def test_a_file_before_1970_and_with_an_odd_name() -> None:
    fields = [
        (Tag.KIND, 0o100000),
        (Tag.LENGTH, 5),
        (Tag.MODE, 0o644),
        (Tag.UID, 1),
        (Tag.GID, 2),
        (Tag.MTIME_NS, 10**9),
    ]
    info = file_info(decode_fields(encode_fields(fields)), "/a/b\udcff/")
    assert (info.kind, info.name, info.modified_at, info.target) == ("file", "b\udcff", 1.0, None)


@pytest.mark.parametrize(
    ("failure", "kind", "code"),
    [
        (RequestFailed("x", error_number=errno.ENOENT), NotFound, "user/not_found"),
        (RequestFailed("x", code=Code.NO_COMMAND), NotFound, "user/not_found"),
        (RequestFailed("x", error_number=errno.EISDIR), InvalidInput, "user/invalid_input"),
        (RequestFailed("x", error_number=errno.ENOSPC), InfraError, "infra/disk_full"),
        (RequestFailed("x", error_number=errno.EDQUOT), InfraError, "infra/disk_full"),
        (RequestFailed("x", error_number=errno.EIO), InfraError, "infra/error"),
        (RequestFailed("x", code=Code.LIMIT), InfraError, "infra/error"),
        (RequestFailed("x", code=Code.CLOSED), InvalidInput, "user/invalid_input"),
    ],
)
def test_what_a_refusal_means(failure: RequestFailed, kind: type[ClocheError], code: str) -> None:
    error = as_error(failure, "/path")
    assert type(error) is kind
    assert error.code == code
    assert error.message == "/path: x"


def test_a_system_error_is_said_in_words() -> None:
    failure = from_fields(
        decode_fields(encode_fields([(Tag.CODE, 7), (Tag.ERRNO, errno.EACCES), (Tag.MESSAGE, "?")]))
    )
    assert str(failure) == "Permission denied"
    assert failure.error_number == errno.EACCES


def test_environment_is_layered() -> None:
    image, spec = ImageConfig(env={"A": "1", "B": "1"}), SandboxSpec(env={"B": "2", "C": "2"})
    assert environment(Command(argv=("x",), env={"C": "3"}), spec, image) == {
        "PATH": DEFAULT_PATH,
        "A": "1",
        "B": "2",
        "C": "3",
    }
    assert (
        environment(Command(argv=("x",)), SandboxSpec(), ImageConfig(env={"PATH": "/own"}))["PATH"] == "/own"
    )


@pytest.mark.parametrize(
    ("command", "spec", "image", "user", "cwd"),
    [
        (None, None, "", "", "/"),
        (None, None, "app", "app", "/"),
        (None, "root", "app", "root", "/"),
        ("0", "bob", "app", "0", "/"),
        ("", "bob", "app", "", "/"),
    ],
)
def test_the_user_is_the_nearest_one(
    command: str | None, spec: str | None, image: str, user: str, cwd: str
) -> None:
    fields = dict(
        start_fields(Command(argv=("x",), user=command), SandboxSpec(user=spec), ImageConfig(user=image))
    )
    assert (fields[Tag.USER], fields[Tag.CWD]) == (user, cwd)


def test_what_a_start_says() -> None:
    command = Command(
        id="c",
        argv=("a", "b"),
        stdin=b"",
        terminal=Terminal(columns=1, rows=2),
        timeout_s=1.5,
        grace_s=0,
        spill=True,
    )
    fields = start_fields(command, SandboxSpec(workdir="/w"), ImageConfig(workdir="/i"))
    assert [value for tag, value in fields if tag == Tag.ARG] == ["a", "b"]
    values = dict(fields)
    assert (values[Tag.CWD], values[Tag.STDIN], values[Tag.TIMEOUT_MS], values[Tag.GRACE_MS]) == (
        "/w",
        1,
        1500,
        0,
    )
    assert (values[Tag.COLUMNS], values[Tag.ROWS], values[Tag.SPILL]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("end", "before", "kills", "reason"),
    [
        (EndRecord(reason=EndReason.SIGNAL, signal=9, unexpected=True), 0, 1, EndReason.OUT_OF_MEMORY),
        (EndRecord(reason=EndReason.SIGNAL, signal=9, unexpected=True), 1, 1, EndReason.SIGNAL),
        (EndRecord(reason=EndReason.SIGNAL, signal=9), 0, 1, EndReason.SIGNAL),
        (EndRecord(reason=EndReason.EXIT, exit_code=137), 0, 2, EndReason.OUT_OF_MEMORY),
        (EndRecord(reason=EndReason.EXIT, exit_code=1), 0, 2, EndReason.EXIT),
        (EndRecord(reason=EndReason.TIMEOUT, signal=9), 0, 2, EndReason.TIMEOUT),
    ],
)
async def test_when_memory_was_short(end: EndRecord, before: int, kills: int, reason: EndReason) -> None:
    async def count() -> int:
        return kills

    assert await OomWatch(count).refine(end, before) is reason
    assert await OomWatch(None).refine(end, before) is end.reason
