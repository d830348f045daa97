"""The preset `packages`, from machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.native.net.presets import packages, spelled_out


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_apt_pip_and_npm_are_set_to_use(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "etc/apt/sources.list": "# deb http://off.example/ x\ndeb [a=b] http://deb.example/d x\n",
            "etc/apt/sources.list.d/a.sources": "URIs: https://one.example/d http://two.example:8080/\n",
            "etc/apt/apt.conf.d/99proxy": 'Acquire::http::Proxy "http://proxy.example:3128/";\n',
            "etc/pip.conf": "[global]\nindex-url = https://user:secret@pip.example/simple\n",
            "home/u/.config/pip/pip.conf": "[install]\nextra-index-url =\n  https://more.example/\n  file:///x\n",
            "home/u/.npmrc": "@team:registry=https://team.example:4873/\nregistry=http://npm.example/\n",
        },
    )
    environ = {"HOME": "/home/u", "PIP_FIND_LINKS": "https://wheels.example/"}
    assert packages(root, environ) == (
        "deb.example:80",
        "more.example:443",
        "npm.example:80",
        "one.example:443",
        "pip.example:443",
        "proxy.example:3128",
        "team.example:4873",
        "two.example:8080",
        "wheels.example:443",
    )


def test_an_empty_preset_and_an_unknown_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        spelled_out((), ("packages",), root=tmp_path, environ={})
    with pytest.raises(InvalidInput, match="`everything`"):
        spelled_out((), ("everything",), root=tmp_path, environ={})


def test_a_list_keeps_its_own_entries_first(tmp_path: Path) -> None:
    root = write(tmp_path, {"etc/apt/sources.list": "deb http://deb.example/ x main\n"})
    assert spelled_out(("a.example",), ("packages",), root=root, environ={}) == (
        "a.example",
        "deb.example:80",
    )
