"""`shoal pair` calls a running Shoal."""

import json
from pathlib import Path

from tests.processes import running
from tests.unit.surfaces.cli.conftest import Shoal
from tests.unit.surfaces.cli.test_access_pair import given, make_home


def test_pair_commands_use_the_running_server(shoal: Shoal, home: Path) -> None:
    make_home(shoal, home)
    (ada,) = given(home, "ada")
    with running(home):
        assert json.loads(shoal("pair", ada, "--json").out) == {"platform": "telegram", "user": "ada"}
        assert [person["by"] for person in json.loads(shoal("pair", "list", "--json").out)["paired"]] == ["web:owner"]
        again = shoal("pair", ada)
        assert (again.code, again.err.count("\n")) == (1, 1)
        assert "pairing code does not exist" in again.err
        assert shoal("pair", "remove", "telegram:ada").code == 0
        assert json.loads(shoal("pair", "list", "--json").out) == {"paired": [], "waiting": []}
