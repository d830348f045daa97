"""What a run folder says about a sandbox."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.sandbox.driver import SandboxState
from cloche.sandbox.native import record
from cloche.sandbox.native.record import Record, parse, process_start_time, read_folder, read_folders
from cloche.sandbox.spec import (
    ImageConfig,
    Lease,
    NetworkMode,
    NetworkPolicy,
    PreparedImage,
    Resources,
    SandboxSpec,
)

TEXT = st.text(max_size=20)
PAIRS = st.dictionaries(TEXT, TEXT, max_size=3)
SPECS = st.builds(
    SandboxSpec,
    id=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True),
    resources=st.builds(
        Resources,
        cpus=st.none() | st.floats(0.01, 64),
        memory_bytes=st.none() | st.integers(1, 1 << 40),
        pids=st.integers(1, 10000),
    ),
    network=st.builds(NetworkPolicy, mode=st.sampled_from(NetworkMode)),
    env=PAIRS,
    user=st.none() | TEXT,
    workdir=st.none() | TEXT,
    hostname=st.none() | TEXT,
    labels=PAIRS,
    lease=st.builds(Lease, ttl_s=st.none() | st.floats(0, 1e6), heartbeat_s=st.none() | st.floats(0, 1e3)),
    no_new_privileges=st.booleans(),
)
IMAGES = st.builds(
    PreparedImage,
    name=TEXT,
    digest=TEXT,
    layers=st.lists(st.just(Path("/layers/one")), max_size=3).map(tuple),
    config=st.builds(
        ImageConfig, env=PAIRS, user=TEXT, workdir=TEXT, entrypoint=st.lists(TEXT, max_size=2).map(tuple)
    ),
)


@given(spec=SPECS, image=IMAGES, owner=st.none() | st.tuples(st.integers(1), st.integers(0)))
def test_a_record_survives_being_written_and_read(
    spec: SandboxSpec, image: PreparedImage, owner: tuple[int, int] | None
) -> None:
    written = Record(spec=spec, image=image, created_at=12.5, boot="b", owner=owner)
    assert parse(written.dump()) == written


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version": 99}', b'{"version": 1}', b"\xff"])
def test_a_broken_record_is_no_record(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "record.json").write_bytes(data)
    folder = read_folder(tmp_path)
    assert folder is not None
    assert folder.record is None
    assert folder.info().image == ""


def make(
    folder: Path, *, pid: int | None = None, end: dict[str, object] | None = None, **options: object
) -> None:
    folder.mkdir()
    spec = SandboxSpec(id=folder.name, lease=Lease(heartbeat_s=options.get("heartbeat_s")))
    image = PreparedImage(name="image", digest="d", layers=())
    made = Record(spec=spec, image=image, created_at=1.0, boot="b", owner=options.get("owner"))
    (folder / "record.json").write_bytes(made.dump())
    if pid is not None:
        start = options.get("start", process_start_time(pid) or 7)
        (folder / "native").write_text(f"pid {pid}\nstart {start}\nslot 3\npublic 1\n")
    if end is not None:
        (folder / "end.json").write_text(json.dumps(end))


def info(folder: Path) -> tuple[SandboxState, int | None, str]:
    found = read_folder(folder)
    assert found is not None
    row = found.info()
    return row.state, row.pid, row.reason


def test_states(tmp_path: Path) -> None:
    me = os.getpid()
    make(tmp_path / "new")
    make(tmp_path / "live", pid=me)
    make(tmp_path / "other-process", pid=me, start=1)
    make(tmp_path / "lease", end={"reason": "guest_exit", "exit_code": 10})
    make(tmp_path / "crash", end={"reason": "guest_exit", "exit_code": 2})
    make(tmp_path / "odd", end={"reason": "something new"})
    assert info(tmp_path / "new") == (SandboxState.STARTING, None, "")
    assert info(tmp_path / "live") == (SandboxState.READY, me, "")
    assert info(tmp_path / "other-process") == (SandboxState.ENDED, None, "its guest is gone")
    assert info(tmp_path / "lease") == (SandboxState.ENDED, None, "its lease ran out: its time was up")
    assert info(tmp_path / "crash") == (SandboxState.ENDED, None, "its guest failed")
    assert info(tmp_path / "odd")[2] == "something new"
    assert [folder.id for folder in read_folders(tmp_path)] == sorted(
        path.name for path in tmp_path.iterdir()
    )


def test_a_torn_end_is_an_end(tmp_path: Path) -> None:
    make(tmp_path / "torn")
    (tmp_path / "torn" / "end.json").write_text('{"reason"')
    assert info(tmp_path / "torn")[0] is SandboxState.ENDED


def test_whom_a_sandbox_belongs_to(tmp_path: Path) -> None:
    me = record.this_process()
    gone = (me[0], me[1] + 1)
    make(tmp_path / "mine", owner=me, heartbeat_s=5.0)
    make(tmp_path / "abandoned", owner=gone, heartbeat_s=5.0)
    make(tmp_path / "free", owner=gone)
    abandoned = {folder.id: folder.abandoned for folder in read_folders(tmp_path)}
    assert abandoned == {"mine": False, "abandoned": True, "free": False}


def test_a_process_that_is_not_there_has_no_start_time() -> None:
    assert process_start_time(os.getpid())
    assert process_start_time(1 << 30) is None


def test_no_folder_is_none(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "nothing") is None
    assert read_folders(tmp_path / "nothing") == []
