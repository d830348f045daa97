"""Logs are kept, but not without end, and errors show their last lines."""

from __future__ import annotations

from pathlib import Path

from cloche.sandbox.images import logs


def test_an_error_shows_the_end_of_its_log_and_where_it_is(tmp_path: Path) -> None:
    log = logs.new_log(tmp_path, "build")
    log.write_text("\n".join(f"line {number}" for number in range(1000)) + "\n\n" + "x" * 5000 + "\n")
    error = logs.failure("it failed", log, hint="try")
    lines = error.message.splitlines()
    assert lines[0] == "it failed"
    assert lines[-2] == "  line 999"
    assert len(lines) == 1 + logs.SHOWN_LINES
    assert max(map(len, lines)) <= logs.SHOWN_COLUMNS + 2
    assert error.where == str(log)
    assert error.hint == "try"


def test_bytes_that_are_no_text_do_not_matter(tmp_path: Path) -> None:
    log = logs.new_log(tmp_path, "build")
    log.write_bytes(b"\xff\xfe bad\n")
    assert "bad" in logs.last_lines(log)


def test_the_oldest_logs_go(tmp_path: Path) -> None:
    made = [logs.new_log(tmp_path, "build") for _ in range(logs.KEPT_MAX + 5)]
    left = set((tmp_path / "logs").iterdir())
    assert len(left) == logs.KEPT_MAX
    assert made[-1] in left
