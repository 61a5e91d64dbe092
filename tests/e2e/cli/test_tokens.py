"""`shoal tokens` changes the tokens of a running Shoal."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.processes import Server, running
from tests.unit.surfaces.cli.conftest import Shoal


def status(server: Server, token: str, path: str = "/api/threads") -> int:
    request = urllib.request.Request(f"{server.address}{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.slow
def test_a_running_shoal_creates_lists_and_revokes_a_token(shoal: Shoal, home: Path) -> None:
    shoal("init")
    before = shoal("token", "create", "early", "--scope", "read").out.strip()
    with running(home) as server:
        token = json.loads(shoal("token", "create", "ben", "--scope", "chat", "--expires", "2d", "--json").out)
        assert (token["token"]["person"], token["token"]["created_by"]) == ("web:ben", "web:owner")
        assert status(server, before) == status(server, token["secret"]) == 200
        assert status(server, token["secret"], "/api/audit") == 403
        used = {token["name"]: bool(token["used_on"]) for token in json.loads(shoal("token", "list", "--json").out)}
        assert used == {"ben": True, "early": True}
        assert shoal("token", "revoke", "ben").out == "Revoked ben.\n"
        assert (status(server, before), status(server, token["secret"])) == (200, 401)
        again = shoal("token", "revoke", "ben")
        assert (again.code, again.err) == (
            1,
            "shoal: No token named 'ben'. 'shoal token list' shows all tokens.\n",
        )
    assert shoal("token", "revoke", "early").code == 0
    assert json.loads(shoal("token", "list", "--json").out) == []
