"""When Shoal rejects a restore, the command that its message suggests works."""

import re
import shlex
import subprocess
from pathlib import Path

from tests.unit.features.backups.test_cli import backup_with_schema, is_one_line, make_home, restored
from tests.unit.surfaces.cli.conftest import Shoal


def test_a_backup_from_before_the_first_release_says_how_to_start_over(
    shoal: Shoal, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "backup.tar.gz"
    make_home(shoal, home)
    backup_with_schema(shoal, home, file, 17)
    result = restored(shoal, home, file)
    assert is_one_line(result), result
    suggestion = re.search(r"'(tar -xzf .+)' into an empty home directory to start without history", result.err)
    assert suggestion is not None, result.err
    assert not home.exists()
    home.mkdir()
    subprocess.run(shlex.split(suggestion[1].replace(file.name, str(file))), cwd=home, check=True)
    assert (home / "agents/main/workspace/notes.txt").read_text() == "tea"
    assert shoal("migrate").code == 0
    assert "terminal:ask:mine" not in shoal("threads", "list").out
