"""Errors as HTTP responses: `{"error": code, "message": text}`. The message says what happened and what to do."""

import logging
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.kernel.errors import (
    Conflict,
    Forbidden,
    Gone,
    InvalidId,
    InvalidInput,
    KeyRefused,
    NotFound,
    PlatformError,
    ShoalError,
    StoreError,
    StoreFull,
    StoreNewer,
    Unreachable,
)

logger = logging.getLogger(__name__)


class ErrorBody(msgspec.Struct, frozen=True):
    """The response to a failed call. Calls below /v1 respond with a CompatBody instead."""

    error: str
    message: str


class ApiError(ShoalError):
    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


class CompatDetail(msgspec.Struct, frozen=True):
    """An error in OpenAI's format."""

    message: str
    type: str
    code: str
    param: str | None = None


class CompatBody(msgspec.Struct, frozen=True):
    """The response to a failed call below /v1, in OpenAI's format."""

    error: CompatDetail


_BY_CLASS: tuple[tuple[type[ShoalError], int, str], ...] = (
    (InvalidId, 400, "invalid_id"),
    (KeyRefused, 400, "key_refused"),
    (Unreachable, 400, "unreachable"),
    (InvalidInput, 400, "invalid_input"),
    (NotFound, 404, "not_found"),
    (Forbidden, 403, "forbidden"),
    (Conflict, 409, "conflict"),
    (Gone, 410, "gone"),
    (PlatformError, 502, "platform"),
    (StoreFull, 507, "disk_full"),
    (StoreNewer, 501, "newer"),
    (StoreError, 503, "store"),
    (ShoalError, 500, "internal"),
)
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_HTTP_TEXTS = {
    404: "{path} does not exist. Run `shoal docs http` for a list of all calls.",
    405: "{path} does not support {method}. The Allow header lists the supported methods.",
}


def compat_body(status: int, code: str, message: str) -> CompatBody:
    kind = "invalid_request_error" if status < 500 else "api_error"
    return CompatBody(CompatDetail(message, "rate_limit_error" if status == 429 else kind, code))


def error_response(
    path: str, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    body = compat_body(status, code, message) if path.startswith("/v1/") else ErrorBody(code, message)
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def answer_shoal_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error_response(request.url.path, error.status, error.code, str(error), error.headers)
    status, code = next((status, code) for kind, status, code in _BY_CLASS if isinstance(error, kind))
    if status >= 500 and not isinstance(error, StoreNewer):  # StoreNewer requires an upgrade; it is not a failure
        logger.error("call failed: %s %s: %s", request.method, request.scope["path"], type(error).__name__)
    return error_response(request.url.path, status, code, str(error))


async def answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, path = error.status_code, request.url.path
    message = _HTTP_TEXTS.get(status, error.detail).format(path=path[:200], method=request.method)
    return error_response(path, status, _HTTP_CODES.get(status, "refused"), message, error.headers)


async def answer_defect(request: Request, _: Exception) -> Response:
    message = "An internal error occurred. Try again, and check Shoal's log if the error persists."
    return error_response(request.url.path, 500, "internal", message)
