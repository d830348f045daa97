"""How the sync face comes from the async one: each method is named once, and keeps its signature and words.

Must never hold behaviour of its own.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from cloche.client.portal import Portal, portal
from cloche.core.errors import ClocheError

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Face[Any]")


class Face(Generic[A]):
    """The sync side of an async object."""

    def __init__(self, inner: A, through: Portal) -> None:
        self._inner = inner
        self._portal = through

    @classmethod
    def _of(cls, inner: Any, through: Portal) -> Self:
        return cls(inner, through)


def value(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[Concatenate[Face[Any], P], R]:
    """Derive a method that returns plain data."""

    @functools.wraps(method)
    def call(self: Face[Any], /, *arguments: P.args, **options: P.kwargs) -> R:
        return self._portal.run(lambda: method(self._inner, *arguments, **options))  # a face of ours

    return call


def items(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Face[Any], P], Iterator[R]]:
    """Derive a method that yields plain data."""

    @functools.wraps(method)
    def call(self: Face[Any], /, *arguments: P.args, **options: P.kwargs) -> Iterator[R]:
        return self._portal.iterate(method(self._inner, *arguments, **options))  # as above

    return call


def face(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], kind: Callable[[], type[F]]
) -> Callable[Concatenate[Face[Any], P], F]:
    """Derive a method that returns a live object: here its sync side."""

    @functools.wraps(method)
    def call(self: Face[Any], /, *arguments: P.args, **options: P.kwargs) -> F:
        inner = self._portal.run(lambda: method(self._inner, *arguments, **options))  # as above
        return kind()._of(inner, self._portal)  # noqa: SLF001  # as above

    return call


def faces_or_errors(
    method: Callable[P, Awaitable[list[Any]]], kind: Callable[[], type[F]]
) -> Callable[P, list[F | ClocheError]]:
    """Derive a class's method that returns live objects, or what went wrong in their places."""

    @functools.wraps(method)
    def call(*arguments: P.args, **options: P.kwargs) -> list[F | ClocheError]:
        through = portal()
        found = through.run(lambda: method(*arguments, **options))
        return [
            item if isinstance(item, ClocheError) else kind()._of(item, through)  # noqa: SLF001  # as above
            for item in found
        ]

    return call


def faces(
    method: Callable[Concatenate[Any, P], Awaitable[list[Any]]], kind: Callable[[], type[F]]
) -> Callable[Concatenate[Face[Any], P], list[F]]:
    """Derive a method that returns live objects."""

    @functools.wraps(method)
    def call(self: Face[Any], /, *arguments: P.args, **options: P.kwargs) -> list[F]:
        found = self._portal.run(lambda: method(self._inner, *arguments, **options))  # as above
        return [kind()._of(inner, self._portal) for inner in found]  # noqa: SLF001  # as above

    return call


def made(method: Callable[P, Awaitable[Any]], kind: Callable[[], type[F]]) -> Callable[P, F]:
    """Derive a class's method that returns a live object."""

    @functools.wraps(method)
    def call(*arguments: P.args, **options: P.kwargs) -> F:
        through = portal()
        return kind()._of(through.run(lambda: method(*arguments, **options)), through)  # noqa: SLF001  # as above

    return call


def told(method: Callable[P, Awaitable[R]]) -> Callable[P, R]:
    """Derive a class's method that returns plain data."""

    @functools.wraps(method)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        return portal().run(lambda: method(*arguments, **options))

    return call
