"""Pairing over HTTP requires a code, and no response contains one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.http_stand import Served, served

from shoal.kernel.messages import Author
from shoal.testing.chat import FakeChat

USER = "@ada/x:example.org"


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        stand.adapters["fake"] = FakeChat()
        yield stand


async def test_a_person_who_requests_access_can_be_paired_and_removed(shoal: Served) -> None:
    code = await shoal.pairing.ask("fake", Author(USER, "Ada", trusted=True))
    before = await shoal.client.get("/api/access")
    (waiting,) = before.json()["waiting"]
    assert (waiting["platform"], waiting["user"], waiting["name"]) == ("fake", USER, "Ada")
    assert code not in before.text
    done = await shoal.client.post("/api/access/pair", json={"code": code})
    assert (done.status_code, done.json()) == (200, {"platform": "fake", "user": USER})
    after = await shoal.client.get("/api/access")
    assert [(person["user"], person["by"]) for person in after.json()["paired"]] == [(USER, "web:owner")]
    assert after.json()["waiting"] == []
    path = "/api/access/fake/%40ada%2Fx%3Aexample.org"
    assert (await shoal.client.delete(path)).json() == {"removed": True}
    assert (await shoal.client.delete(path)).status_code == 404
    assert await shoal.pairing.people("fake") == ()


async def test_a_wrong_code_pairs_nobody(shoal: Served) -> None:
    await shoal.pairing.ask("fake", Author("ada", trusted=True))
    for code, status in (("ABCDEFGH", 404), ("", 400), ("short", 400), ("x" * 41, 400)):
        assert (await shoal.client.post("/api/access/pair", json={"code": code})).status_code == status
    assert await shoal.pairing.people("fake") == ()


async def test_untrusted_people_pair_no_one(shoal: Served) -> None:
    code = await shoal.pairing.ask("fake", Author("ada", trusted=True))
    assert (await shoal.stranger.post("/api/access/pair", json={"code": code})).status_code == 401
    assert (await shoal.stranger.get("/api/access")).status_code == 401
    assert (await shoal.stranger.delete("/api/access/fake/ada")).status_code == 401
