"""Which of a machine's package sources make a plain Debian."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.core.errors import EnvironmentUnusable
from cloche.sandbox.images import sources
from cloche.sandbox.images.sources import Source

DEB822 = """\
# the release
Types: deb deb-src
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://src.example/debian
Suites: bookworm
Components: main
"""

LINES = """\
# deb http://comment.example/debian bookworm main
deb http://mirror.example/debian bookworm main non-free-firmware # the mirror
deb [arch=amd64 signed-by=/usr/share/keyrings/other.gpg] http://other.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian bookworm-backports main
deb http://vendor.example/apt vendor-bookworm main
deb http://tool.example/linux/debian bookworm stable
deb http://user:secret@private.example/debian bookworm main
deb http://third.example/apt bookworm main
"""


def test_the_newer_format_is_read_with_all_its_products() -> None:
    found = list(sources.parse_deb822(DEB822))
    assert [(item.uri, item.suite) for item in found] == [
        ("http://mirror.example/debian", "bookworm"),
        ("http://mirror.example/debian", "bookworm-updates"),
        ("http://second.example/debian", "bookworm"),
        ("http://second.example/debian", "bookworm-updates"),
        ("http://mirror.example/debian-security/", "bookworm-security"),
    ]
    assert found[0].signed_by == "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert found[-1].signed_by == ""  # a key in the file itself
    assert found[0].components == ("main", "contrib")


def test_only_debians_own_suites_are_kept() -> None:
    kept = sources.debian_sources(sources.parse_lines(LINES), "bookworm")
    assert [item.line() for item in kept] == [
        "deb http://mirror.example/debian bookworm main non-free-firmware"
    ]


def test_another_release_comes_from_the_same_mirrors() -> None:
    kept = sources.debian_sources(sources.parse_deb822(DEB822), "trixie")
    assert [(item.uri, item.suite) for item in kept] == [
        ("http://mirror.example/debian", "trixie"),
        ("http://mirror.example/debian", "trixie-updates"),
        ("http://second.example/debian", "trixie"),
        ("http://second.example/debian", "trixie-updates"),
        ("http://mirror.example/debian-security/", "trixie-security"),
    ]


def test_a_line_names_its_key_ring() -> None:
    source = Source(uri="http://m.example/debian", suite="trixie", components=("main",), signed_by="/k.gpg")
    assert source.line() == "deb [signed-by=/k.gpg] http://m.example/debian trixie main"


def test_a_machine_without_a_mirror_is_told_what_to_do() -> None:
    with pytest.raises(EnvironmentUnusable, match="no Debian mirror") as caught:
        sources.debian_sources(sources.parse_lines("deb http://vendor.example/apt vendor main"), "bookworm")
    assert "cloche image import" in str(caught.value.hint)


def test_every_file_of_apt_is_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://one.example/debian bookworm main\n")
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "two.list").write_text("deb http://two.example/debian bookworm main\n")
    (parts / "three.sources").write_text(
        "Types: deb\nURIs: http://three.example/debian\nSuites: bookworm\nComponents: main\n"
    )
    (parts / "ignored.save").write_text("deb http://four.example/debian bookworm main\n")
    assert [item.uri.split("//")[1].split(".")[0] for item in sources.read(tmp_path)] == [
        "one",
        "two",
        "three",
    ]
    assert sources.read(tmp_path / "nothing") == []


def test_options_that_reach_mirrors_are_kept_but_no_passwords() -> None:
    dump = (
        'APT "";\nAcquire::Check-Valid-Until "false";\nAcquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::Proxy "http://user:secret@proxy.example:3128";\nAcquire::Retries "3";\n'
        'Acquire::Check-Date "";\n'
    )
    assert sources.kept_options(dump) == [
        'Acquire::Check-Valid-Until "false";',
        'Acquire::http::Proxy "http://proxy.example:3128";',
    ]
