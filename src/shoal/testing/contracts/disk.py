"""The contract of a sandbox's disk limits. Each test tries to fill the disk.

    class TestMySandbox(DiskContract):
        @pytest.fixture
        async def inner(self): ...  # yields a sandbox; the contract wraps it in BoundedSandbox

The suite needs bash, coreutils and util-linux where the commands run. After writing too much, the commands sleep, so
only the sandbox can end them.
"""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from shoal.kernel.errors import FolderFull, SandboxError
from shoal.kernel.ports import Command, CommandResult, Mount, Sandbox
from shoal.kernel.settings import SandboxSettings
from shoal.sandbox.bounded import MEBIBYTE, UNSEEN_BYTES, BoundedSandbox, measure_folder
from shoal.testing.contracts.sandbox import Witness

BYTES_MAX = 16 * MEBIBYTE
FILES_MAX = 300
DISK_BYTES = 128 * MEBIBYTE
LOOK_SECONDS = 0.05
WRITE = "for i in {1..40}; do head -c 1M /dev/zero > %s$i; done; "
"""Shell code that writes many small files, in total more than BYTES_MAX. Replace `%s` with a prefix for their names."""
FOREVER = "sleep 600"


def _limits(bytes_max: int, files_max: int, free_bytes_min: int = 0) -> SandboxSettings:
    return SandboxSettings(
        workspace_bytes_max=bytes_max, workspace_files_max=files_max, disk_free_bytes_min=free_bytes_min
    )


class DiskContract:
    """Contract suite for disk limits. Subclass it and provide an `inner` fixture.

    Set `workspace_owner` to a user id if the workspace must belong to a user other than the one who runs the tests.
    """

    workspace_owner: ClassVar[int] = -1

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        folder = tmp_path / "workspace"
        folder.mkdir()
        folder.chmod(0o777)
        os.chown(folder, self.workspace_owner, self.workspace_owner)
        return folder

    @pytest.fixture
    def small_disk(self, workspace: Path) -> Iterator[Path]:
        """Mount a small, empty disk as the workspace. Nothing but the test writes to it.

        Skips the test if this user cannot mount disks.
        """
        size = f"size={DISK_BYTES},mode=777"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", workspace], check=False)
        if mounted.returncode != 0:
            pytest.skip("this user cannot mount a disk")
        os.chown(workspace, self.workspace_owner, self.workspace_owner)
        yield workspace
        subprocess.run(["umount", "--lazy", workspace], check=True)

    @pytest.fixture
    def bounded(self, inner: Sandbox) -> BoundedSandbox:
        """Return the sandbox under test with disk limits."""
        return BoundedSandbox(inner, _limits(BYTES_MAX, FILES_MAX), LOOK_SECONDS)

    @staticmethod
    async def run(sandbox: Sandbox, workspace: Path, text: str, watch: "_Nobody | None" = None) -> CommandResult:
        mounts = (Mount(workspace, "/workspace", writable=True),)
        return await sandbox.run(Command(text, workspace, mounts, timeout_seconds=120, watch=watch))

    async def test_many_small_files_exceed_the_limit(self, bounded: BoundedSandbox, workspace: Path) -> None:
        """The sandbox stops the command and reports why. The files remain."""
        with pytest.raises(
            FolderFull, match=r"stopped.*/workspace contains .* MiB, more than the limit of 16 MiB. Remove"
        ):
            await self.run(bounded, workspace, WRITE % "f" + FOREVER)
        assert measure_folder(workspace, FILES_MAX).size_bytes > BYTES_MAX

    async def test_one_growing_file_exceeds_the_limit(self, bounded: BoundedSandbox, workspace: Path) -> None:
        with pytest.raises(FolderFull, match="limit of 16 MiB"):
            await self.run(bounded, workspace, f"head -c 40M /dev/zero > one; {FOREVER}")

    async def test_too_many_files_exceed_the_limit(self, bounded: BoundedSandbox, workspace: Path) -> None:
        """Empty files and directories count toward the limit too."""
        with pytest.raises(FolderFull, match="files and folders, more than the limit of 300"):
            await self.run(bounded, workspace, f"mkdir d; for i in {{1..400}}; do : > d/$i; done; {FOREVER}")

    async def test_concurrent_writers_are_all_stopped(self, bounded: BoundedSandbox, workspace: Path) -> None:
        texts = [f"for i in {{1..7}}; do head -c 1M /dev/zero > {name}$i; done; {FOREVER}" for name in "abc"]
        ends = await asyncio.gather(*(self.run(bounded, workspace, text) for text in texts), return_exceptions=True)
        assert [type(end) for end in ends] == [FolderFull] * 3

    async def test_a_writer_in_its_own_session_is_stopped(self, bounded: BoundedSandbox, workspace: Path) -> None:
        writer = f"exec 9>alive; echo started >&9; echo up > up; {WRITE % 'b'} exec {FOREVER}"
        with Witness(workspace) as witness:
            text = f"setsid bash -c '{writer}' </dev/null >/dev/null 2>&1 & cat up; {FOREVER}"
            with pytest.raises(FolderFull):
                await self.run(bounded, workspace, text)
            assert witness.started.is_set()
            assert witness.has_ended()

    async def test_sparse_files_and_hard_links_count_by_their_content(
        self, bounded: BoundedSandbox, workspace: Path
    ) -> None:
        """For a sparse file, only the content counts. A file with several hard links counts once."""
        with (workspace / "sparse").open("wb") as file:
            file.truncate(100 * BYTES_MAX)
        (workspace / "one").write_bytes(bytes(MEBIBYTE))
        for number in range(100):
            os.link(workspace / "one", workspace / f"name{number}")
        result = await self.run(bounded, workspace, "sleep 1; echo fine > file; cat file")
        assert (result.stdout, result.stderr) == (b"fine\n", b"")

    async def test_a_full_folder_allows_only_deletions(self, bounded: BoundedSandbox, workspace: Path) -> None:
        with pytest.raises(FolderFull):
            await self.run(bounded, workspace, WRITE % "f" + FOREVER)
        grown = await self.run(bounded, workspace, "echo x > new; echo x >> f1; ls f1; rm f2; sleep 1; echo end")
        assert grown.stdout == b"f1\nend\n"
        assert b"/workspace contains" in grown.stderr
        assert b"Files cannot grow until the problem is fixed" in grown.stderr
        assert ((workspace / "new").stat().st_size, (workspace / "f1").stat().st_size) == (0, MEBIBYTE)
        assert not (workspace / "f2").exists()
        (workspace / "f").write_bytes(bytes(2 * MEBIBYTE))  # the command may have stopped one file after the limit
        with pytest.raises(FolderFull, match="limit of 16 MiB"):
            await bounded.require_room((Mount(workspace, "/workspace", writable=True),))
        await self.run(bounded, workspace, "rm f*")
        fine = await self.run(bounded, workspace, "echo x > new; cat new")
        assert (fine.stdout, fine.stderr) == (b"x\n", b"")

    async def test_a_watched_process_does_not_start_in_a_full_folder(
        self, bounded: BoundedSandbox, workspace: Path
    ) -> None:
        for number in range(FILES_MAX + 1):
            (workspace / f"f{number}").touch()
        with pytest.raises(FolderFull):
            await self.run(bounded, workspace, FOREVER)
        with pytest.raises(SandboxError, match="limit of 300"):
            await self.run(bounded, workspace, "echo x", _Nobody())

    async def test_a_command_on_a_nearly_full_disk_cannot_write(self, inner: Sandbox, workspace: Path) -> None:
        sandbox = BoundedSandbox(inner, SandboxSettings(disk_free_bytes_min=2**62), LOOK_SECONDS)
        result = await self.run(sandbox, workspace, "echo x > file; rm file; sleep 1; echo end")
        assert result.stdout == b"end\n"
        assert b"must stay free" in result.stderr

    async def test_free_disk_space_is_reserved(self, inner: Sandbox, small_disk: Path) -> None:
        sandbox = BoundedSandbox(inner, _limits(0, 0, 88 * MEBIBYTE), LOOK_SECONDS)
        slowly = "for i in {1..60}; do head -c 1M /dev/zero > f$i; read -t 0.02 <> pipe; done 2>/dev/null; "
        os.mkfifo(small_disk / "pipe")
        (small_disk / "pipe").chmod(0o666)
        with pytest.raises(FolderFull, match="88 MiB must stay free"):
            await self.run(sandbox, small_disk, slowly + FOREVER)

    async def test_short_commands_count_together(self, bounded: BoundedSandbox, small_disk: Path) -> None:
        """Some commands end before the sandbox can measure the disk."""
        errors = ""
        for number in range(24):
            try:
                errors += (await self.run(bounded, small_disk, f"head -c 4M /dev/zero > f{number}")).stderr.decode()
            except FolderFull as error:  # the sandbox measured this command
                errors += str(error)
        assert measure_folder(small_disk, FILES_MAX).size_bytes <= UNSEEN_BYTES + 4 * MEBIBYTE
        assert "/workspace contains" in errors


class _Nobody:
    def started(self, pid: int) -> None: ...

    def output(self, data: bytes) -> None: ...
