"""Backups over HTTP: made on demand, listed, and reported if they fail."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.http_stand import Served, served

from shoal.features.backups.service import PROBLEM


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        yield stand


async def test_a_backup_is_made_on_demand_and_listed(shoal: Served) -> None:
    assert (await shoal.client.get("/api/backups")).json() == {
        "scheduled": True, "problem": "", "backups": [], "has_place": True, "to": "", "every_hours": 24,
    }  # fmt: skip
    answer = await shoal.client.post("/api/backups", json={})
    assert answer.status_code == 201
    assert (await shoal.client.get("/api/backups")).json()["backups"] == [answer.json()]
    (row,) = await shoal.store.audit.tail(chain_name="owner")
    assert (row.entry.kind, row.entry.action) == ("backup", answer.json()["name"])


async def test_a_failed_backup_says_what_to_do(shoal: Served) -> None:
    (shoal.home.root / "kept").write_text("not a directory")
    failed = await shoal.client.post("/api/backups", json={})
    assert (failed.status_code, failed.json()["error"]) == (503, "store")
    assert "permissions of backup.to" in failed.json()["message"]


async def test_the_last_failure_is_shown_until_a_backup_succeeds(shoal: Served) -> None:
    await shoal.store.settings.put(*PROBLEM, "The disk is full.")
    assert (await shoal.client.get("/api/backups")).json()["problem"] == "The disk is full."
    assert (await shoal.client.post("/api/backups", json={})).status_code == 201
    assert (await shoal.client.get("/api/backups")).json()["problem"] == ""
