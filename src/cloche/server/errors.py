"""How an error becomes an answer, and the errors that only HTTP has.

The one place that turns exceptions into status codes. Must never show what an unexpected error said: it may
hold a secret; the log has it under the request's id.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web
from aiohttp.client_exceptions import ClientError
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import ValidationError

from cloche.api.models import ErrorBody
from cloche.core.errors import ClocheError, InfraError, InvalidInput, UsageError
from cloche.core.failures import classify

log = logging.getLogger("cloche.server")


class Unauthorised(UsageError):
    """This needs a key."""

    code = "user/unauthorised"
    http_status = 401


class Forbidden(UsageError):
    """This key may not do that."""

    code = "user/forbidden"
    http_status = 403


class WrongMethod(UsageError):
    """This path does not know that method."""

    code = "user/method"
    http_status = 405


class TooLarge(UsageError):
    """The body is too large."""

    code = "user/too_large"
    http_status = 413


class WrongMediaType(UsageError):
    """The body's content type is not the one that is wanted."""

    code = "user/media_type"
    http_status = 415


class BadRange(UsageError):
    """The file has no such range."""

    code = "user/range"
    http_status = 416


class TooFast(UsageError):
    """More requests than this key may make."""

    code = "user/rate"
    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, hint=f"try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class Stopping(InfraError):
    """The service is stopping; sandboxes and commands live on."""

    code = "infra/stopping"
    http_status = 503
    retry_after_s = 1.0


def invalid(error: ValidationError) -> InvalidInput:
    """Return what is wrong with a body or a query: the first fault, with its field's path."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return InvalidInput(
        f"{where}: {first['msg']}{more}" if where else first["msg"] + more, where=where or None
    )


def as_cloche_error(error: BaseException) -> ClocheError:
    """Return the error that people see for whatever was raised."""
    match error:
        case ClocheError():
            return error
        case ValidationError():
            return invalid(error)
        case web.HTTPRequestEntityTooLarge():
            return TooLarge()
        case HttpProcessingError() | ClientError():
            return InvalidInput("the body ended early, or is not what its head says")
        case _:
            found = classify(error)
            return InfraError(found.kind.meaning, code=found.code)


def body_of(error: ClocheError) -> ErrorBody:
    """Return an error as it goes over the wire."""
    return ErrorBody(
        code=error.code, domain=error.domain.value, message=error.message, hint=error.hint, where=error.where
    )


def status_of(error: BaseException) -> int:
    """Return the HTTP status of whatever was raised; 499 stands for a client that has gone."""
    if isinstance(error, asyncio.CancelledError):
        return 499
    known = as_cloche_error(error)
    if not isinstance(
        error, ClocheError | ValidationError | HttpProcessingError | ClientError | web.HTTPException
    ):
        return 500
    return known.http_status


def answer(error: BaseException, request_id: str) -> web.Response:
    """Return the answer that an error gets; what nobody foresaw is logged with its traceback."""
    status = status_of(error)
    known = as_cloche_error(error)
    if status == 500:
        log.error("request failed", exc_info=error, extra={"request_id": request_id})
    body = body_of(known)
    if status >= 500 and body.hint is None:
        body = body.model_copy(update={"hint": f"the service's log has it under {request_id}"})
    text = f'{{"error":{body.model_dump_json()}}}'
    response = web.Response(status=status, body=text.encode(), content_type="application/json")
    response.headers["X-Request-ID"] = request_id
    after = getattr(known, "retry_after_s", None)
    if status in {429, 503}:
        response.headers["Retry-After"] = str(max(1, round(after if isinstance(after, int | float) else 1)))
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="cloche"'
    return response
