"""The errors that people see keep their promises: a code, a domain, one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloche.core import errors
from cloche.core.errors import ClocheError, Domain


def _tree(root: type[ClocheError]) -> Iterator[type[ClocheError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


_OWN = [kind for kind in _tree(ClocheError) if kind.__module__ == errors.__name__]


def test_every_error_has_a_stable_code_and_says_what_it_is() -> None:
    for kind in _tree(ClocheError):
        area, slash, name = kind.code.partition("/")
        assert slash, kind
        assert area.isidentifier(), kind
        assert name.replace("_", "").isalnum(), kind
        assert (kind.__doc__ or "").strip(), kind


def test_the_default_message_is_one_line() -> None:
    for kind in _OWN:
        assert kind().message
        assert "\n" not in kind().message


def test_codes_are_unique_within_the_module() -> None:
    codes = [kind.code for kind in _OWN]
    assert len(codes) == len(set(codes))


def test_an_instance_may_be_more_exact_than_its_class() -> None:
    error = errors.InfraError("the disk is full", code="infra/disk_full", hint="free some space", where="x:1")
    assert error.code == "infra/disk_full"
    assert errors.InfraError.code == "infra/error"
    assert (error.message, error.hint, error.where) == ("the disk is full", "free some space", "x:1")


@pytest.mark.parametrize(
    "kind", [errors.InfraError, errors.SandboxLost, errors.ImageError, errors.ModelError]
)
def test_infrastructure_is_never_somebodys_fault(kind: type[ClocheError]) -> None:
    assert kind.domain is Domain.INFRA


def test_exit_codes_are_the_documented_ones() -> None:
    assert errors.UsageError.exit_code == 2
    assert errors.PlanRefused.exit_code == 2
    assert errors.EnvironmentUnusable.exit_code == 5


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    drawn = errors.__doc__ or ""
    for kind in _OWN:
        assert kind.__name__ in drawn
