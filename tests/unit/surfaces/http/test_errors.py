"""The server's log entries for failed requests."""

import pytest
from starlette.requests import Request

from shoal.kernel.errors import ShoalError, StoreFull, StoreNewer
from shoal.surfaces.http.errors import answer_shoal_error


@pytest.mark.parametrize(
    ("error", "status", "logged"), [(StoreNewer("Install it."), 501, False), (StoreFull("It is full."), 507, True)]
)
async def test_a_newer_versions_record_is_reported_to_the_caller_and_not_logged(
    caplog: pytest.LogCaptureFixture, error: ShoalError, status: int, logged: bool
) -> None:
    answer = await answer_shoal_error(Request({"type": "http", "method": "GET", "path": "/x", "headers": []}), error)
    assert answer.status_code == status
    assert ("call failed" in caplog.text) == logged
