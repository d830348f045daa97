"""Files of the record: private, whole or absent, in a folder that one run holds."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.experiment.record import files
from cloche.experiment.record.files import (
    RecordError,
    append_line,
    locked,
    make_folder,
    make_private,
    read_json,
    recording,
    write_bytes,
    write_json,
    write_text,
)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b")
        write_json(tmp_path / "a" / "b" / "x.json", {"k": 1})
        append_line(tmp_path / "a" / "b" / "x.log", "line")
    finally:
        os.umask(old)
    assert _mode(tmp_path / "a" / "b") == 0o700
    assert _mode(tmp_path / "a" / "b" / "x.json") == 0o600
    assert _mode(tmp_path / "a" / "b" / "x.log") == 0o600


def test_a_file_is_replaced_at_once_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"n": 1}, durable=True)
    write_json(path, {"n": 2})
    assert read_json(path) == {"n": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RecordError) as caught:
        write_bytes(path, b"new", durable=True)
    assert caught.value.code == "infra/disk_full"
    assert caught.value.exit_code == 5
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_another_error_is_said_with_the_file() -> None:
    wanted = pytest.raises(RecordError, match="cannot write /x: Read-only file system")
    with wanted as caught, recording(Path("/x")):
        raise OSError(errno.EROFS, "Read-only file system")
    assert caught.value.code == "infra/record"


def test_what_no_strict_reader_accepts_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x", {"n": float("nan")})
    write_json(tmp_path / "y", {"half": "\ud800"})
    assert json.loads((tmp_path / "y").read_bytes().decode("utf-8")) == {"half": "\ufffd"}
    write_text(tmp_path / "z", "a\udcffb")
    assert (tmp_path / "z").read_text() == "a\\udcffb"


def test_reading(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none") is None
    (tmp_path / "half").write_text('{"a": ')
    with pytest.raises(InvalidInput, match="half cannot be read"):
        read_json(tmp_path / "half")


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine\n")
    (tmp_path / "log").symlink_to("target")
    with pytest.raises(RecordError):
        append_line(tmp_path / "log", "line")
    assert (tmp_path / "target").read_text() == "mine\n"


def test_making_private_leaves_links_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    folder = tmp_path / "trial"
    (folder / "deep").mkdir(parents=True, mode=0o777)
    (folder / "deep" / "tool").write_text("x")
    (folder / "deep" / "tool").chmod(0o4777)
    (folder / "link").symlink_to(outside)
    make_private(folder)
    assert _mode(folder / "deep") == 0o700
    assert _mode(folder / "deep" / "tool") == 0o600
    assert _mode(outside) == 0o644


def test_a_folder_is_held_by_one_run(tmp_path: Path) -> None:
    wanted = pytest.raises(InvalidInput, match="another run is writing")
    with locked(tmp_path), wanted, locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
