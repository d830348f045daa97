"""Unified diffs are taken apart and applied exactly, or refused with their line."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import InvalidInput
from cloche.sandbox.guest.unified import PatchKind, apply, parse

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c \r\n", b"-x\n", b"+y\n", b"@@\n"]), max_size=12)


def _diff(old: list[bytes], new: list[bytes]) -> bytes:
    """Make a patch as ``diff -u`` does, with its mark for a last line without newline."""
    texts = [[line.decode() for line in side] for side in (old, new)]
    lines = difflib.unified_diff(texts[0], texts[1], "a/f", "b/f", n=1)
    out = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return out.encode()


@given(LINES, LINES, st.booleans(), st.booleans())
def test_what_diff_says_is_what_apply_does(
    old: list[bytes], new: list[bytes], old_cut: bool, new_cut: bool
) -> None:
    old = [*old, b"end"] if old_cut else old
    new = [*new, b"end"] if new_cut else new
    if old == new:
        return
    patch = parse(_diff(old, new))[0]
    assert apply(patch, b"".join(old)) == b"".join(new)


def test_a_hunk_may_have_moved_by_some_lines() -> None:
    patch = parse(b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n")[0]
    assert apply(patch, b"zero\nzero\none\ntwo\n") == b"zero\nzero\none\n2\n"


@pytest.mark.fault("patch-does-not-fit")
def test_context_that_differs_is_refused_with_file_hunk_and_line() -> None:
    patch = parse(b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n")[0]
    with pytest.raises(InvalidInput, match=r"hunk 1 of 'f' \(line 3 of the patch\).*line 2 should be b'two"):
        apply(patch, b"one\nthree\n")


def test_git_headers() -> None:
    data = (
        b"diff --git a/new b/new\nnew file mode 100755\nindex 000..111\n--- /dev/null\n+++ b/new\n"
        b"@@ -0,0 +1 @@\n+#!/bin/sh\n"
        b"diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        b"diff --git a/from b/to\nsimilarity index 100%\nrename from from\nrename to to\n"
        b"diff --git a/run b/run\nold mode 100644\nnew mode 100755\n"
        b"diff --git a/empty b/empty\nnew file mode 100644\nindex 000..e69\n"
        b'diff --git "a/\\303\\244 x" "b/\\303\\244 x"\n--- "a/\\303\\244 x"\n+++ "b/\\303\\244 x"\n'
        b"@@ -1 +1 @@\n-1\n+2\n"
    )
    found = [(item.kind, item.old, item.new, item.mode) for item in parse(data)]
    assert found == [
        (PatchKind.ADDED, "", "new", 0o755),
        (PatchKind.DELETED, "old", "", None),
        (PatchKind.RENAMED, "from", "to", None),
        (PatchKind.MODIFIED, "run", "run", 0o755),
        (PatchKind.ADDED, "", "empty", 0o644),
        (PatchKind.MODIFIED, "ä x", "ä x", None),
    ]


@pytest.mark.fault("patch-not-understood")
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"nothing here\n", "changes nothing"),
        (b"@@ -1 +1 @@\n-a\n+b\n", "line 1 .*hunk of no file"),
        (b"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n", "ends in the middle"),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n?a\n", "begins with a space"),
        (b"--- a/f\n+++ b/f\n@@ -x +1 @@\n", "makes no sense"),
        (b"--- a/f\n+++ b/f\n", "no hunk"),
        (b"--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n", "no path below 1"),
        (b"diff --git a/f b/f\nGIT binary patch\nliteral 3\n", "binary"),
        (b"diff --git a/f b/f\nnew file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "regular"),
        (b"--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "nowhere"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(data: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parse(data)


@given(st.binary(max_size=400))
def test_no_input_is_more_than_refused(data: bytes) -> None:
    for body in (data, b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n" + data, b"diff --git a/f b/f\n" + data):
        try:
            parse(body)
        except InvalidInput as error:
            assert str(error)  # noqa: PT017  # either outcome is right
