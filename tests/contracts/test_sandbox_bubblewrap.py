"""The sandbox contract for bubblewrap, without a network and with a list of allowed hosts."""

import asyncio
import platform
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.kernel.ports import Command, Mount, Sandbox
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.limits import CommandLimits
from shoal.sandbox.seccomp import CALLS, filter_file, filter_program
from shoal.testing.contracts import isolation
from shoal.testing.contracts.disk import DiskContract
from shoal.testing.contracts.isolation import IsolationContract
from shoal.testing.contracts.sandbox import SandboxContract

PYTHON = "/usr/bin/python3"
OLD_CALLS = r"""
static long call(long number, long first, long second) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second), "d"(0L) : "memory");
    return result;
}
static long x32(long number, long first, long second) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(0L) : "rcx", "r11", "memory");
    return result;
}
void _start(void) {
    int wrong = 0;
    long unix_socket = call(359, 1, 1);
    if (unix_socket != -38 && unix_socket < 0) wrong |= 1;         /* unix, or no calls of 32 bits at all */
    if (call(359, 40, 1) >= 0 || call(360, 40, 1) >= 0) wrong |= 2;  /* vsock */
    if (call(102, 1, 0) != -38 || call(102, 8, 0) != -38) wrong |= 4;
    if (call(120, 0x10000000 | 17, 0) >= 0) wrong |= 8;            /* a user namespace */
    if (x32(0x40000000 | 41, 40, 1) != -38 || x32(0x40000000 | 41, 1, 1) != -38) wrong |= 16;
    x32(60, wrong, 0);
}
"""
THREADS = (
    "printf '#include <pthread.h>\\n#include <stdio.h>\\nvoid*f(void*x){return x;}"
    'int main(){pthread_t t;pthread_create(&t,0,f,0);pthread_join(t,0);puts("threads");}\' > t.c'
    " && gcc t.c -o t -pthread && ./t"
)
GIT = (
    "export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=a GIT_CONFIG_KEY_1=user.email"
    " GIT_CONFIG_VALUE_1=b; git init -q -b main r && cd r && echo 1 > f && git add f && git commit -qm one"
    " && git switch -qc b && echo 2 > g && git add g && git commit -qm two && git switch -q main && git merge -q b"
    " && git gc -q && git fsck && git log --oneline | wc -l && echo merged"
)
NODE = (
    'node -e \'(async()=>{const{Worker}=require("worker_threads"),http=require("http"),fs=require("fs").promises;'
    'await new Promise(r=>new Worker("1",{eval:true}).on("exit",r));await fs.writeFile("x","1");'
    'require("child_process").execSync("true");const s=http.createServer().listen("/tmp/s",()=>s.close());'
    'console.log("node","ready")})()\''
)

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


class TestBubblewrapSandbox(SandboxContract):
    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        sandbox = BubblewrapSandbox()
        yield sandbox
        await sandbox.close()


class TestBubblewrapIsolation(IsolationContract):
    """Isolation under low limits."""

    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        sandbox = BubblewrapSandbox(
            CommandLimits(
                memory_bytes_max=isolation.MEMORY_BYTES_MAX,
                processes_max=isolation.PROCESSES_MAX,
                file_bytes_max=isolation.FILE_BYTES_MAX,
                temporary_bytes_max=isolation.TEMPORARY_BYTES_MAX,
                cpu_seconds_max=isolation.CPU_SECONDS_MAX,
                open_files_max=isolation.OPEN_FILES_MAX,
            )
        )
        yield sandbox
        await sandbox.close()


needs_filter = pytest.mark.skipif(not filter_program(platform.machine()), reason="no filter for this machine")
TRY_FAMILIES = """
import errno, socket
kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
for make in (socket.socket, socket.socketpair):
    for family in range(46):
        for kind in kinds:
            for protocol in (0, 1):
                try:
                    make(family, kind, protocol)
                except OSError as error:
                    refused = error.errno == errno.EAFNOSUPPORT
                else:
                    refused = False
                if not refused:
                    print(family)
"""
TRY_CALLS = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in map(int, sys.argv[1:]):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(0),) * 6)
    print(number, errno.errorcode.get(ctypes.get_errno(), "OK") if result == -1 else "OK")
"""
HARMLESS_MISSING = ("clone", "unshare", "personality", "ioctl", "socket", "socketpair", "socketcall", "vhangup")


class TestBubblewrapCalls:
    """The system call filter of a real sandbox."""

    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[BubblewrapSandbox]:
        sandbox = BubblewrapSandbox()
        yield sandbox
        await sandbox.close()

    @staticmethod
    async def run(sandbox: BubblewrapSandbox, folder: Path, text: str) -> str:
        mounts = (Mount(folder, "/workspace", writable=True),)
        result = await sandbox.run(Command(f"({text}) 2>&1", folder, mounts, timeout_seconds=120.0))
        return result.stdout.decode(errors="replace")

    @needs_filter
    async def test_only_four_socket_families_can_be_created(self, sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
        (tmp_path / "try.py").write_text(TRY_FAMILIES)
        output = await self.run(sandbox, tmp_path, f"{PYTHON} try.py")
        assert set(map(int, output.split())) == {1, 2, 10, 16}

    @needs_filter
    async def test_refused_calls_fail_with_the_documented_error(
        self, sandbox: BubblewrapSandbox, tmp_path: Path
    ) -> None:
        machine = platform.machine()
        wanted = {getattr(call, machine): name for name, call in CALLS.items() if name not in HARMLESS_MISSING}
        wanted = {number: name for number, name in wanted.items() if number}
        (tmp_path / "try.py").write_text(TRY_CALLS)
        output = await self.run(sandbox, tmp_path, f"{PYTHON} try.py {' '.join(map(str, wanted))} 470 1000")
        said = dict(line.split() for line in output.splitlines())
        assert set(said.values()) <= {"EPERM", "ENOSYS", "ENOTSUP", "EOPNOTSUPP"}, said
        assert said["470"] == said["1000"] == "ENOSYS"

    @needs_filter
    async def test_a_32_bit_program_cannot_bypass_the_filter(self, sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
        """32-bit programs use different system call numbers, including one call that can create any socket."""
        compiler = shutil.which("gcc", path="/usr/bin")
        if compiler is None or platform.machine() != "x86_64":
            pytest.skip("no compiler for this")
        (tmp_path / "try.c").write_text(OLD_CALLS)
        output = await self.run(sandbox, tmp_path, "gcc -nostdlib -static -O1 -o try try.c && ./try; echo $?")
        assert output.strip() == "0"

    @pytest.mark.parametrize(
        ("program", "text", "says"),
        [
            ("gcc", "echo 'int puts(char*);int main(){puts(\"built\");}' > a.c && gcc a.c -o a && ./a", "built"),
            ("gcc", THREADS, "threads"),
            ("g++", "printf '#include <iostream>\nint main(){std::cout<<1;}' > a.cc && g++ a.cc && ./a.out", "1"),
            ("make", "printf 'all:\n\t@echo made\n' > Makefile && make -j4", "made"),
            ("git", GIT, "merged"),
            ("git", "git init -q x && git init -q --bare y && cd x && git -c user.name=a -c user.email=b commit -q "
             "--allow-empty -m one && git push -q ../y HEAD:main && git clone -q ../y ../z && echo cloned", "cloned"),
            ("node", NODE, "node ready"),
            ("npm", "echo '{\"scripts\":{\"t\":\"node -e 1; echo npm-ran\"}}' > package.json && npm run -s t", "npm-"),
            (PYTHON, f"{PYTHON} -c 'import asyncio,subprocess,multiprocessing as m,ssl,socket;"
             "socket.socketpair();socket.socket();asyncio.run(asyncio.sleep(0));"
             "print(subprocess.run([\"echo\",\"py\"],capture_output=True).stdout, m.Pool(2).map(abs,[-1]))'",
             "[1]"),
            (PYTHON, f"{PYTHON} -m venv --without-pip v && v/bin/python -c 'print(\"venv\")'", "venv"),
            (PYTHON, f"printf 'import unittest\nclass T(unittest.TestCase):\n def test(self): pass\n' > t.py; {PYTHON} "
             "-m unittest t", "OK"),
            ("tar", "seq 1000 > f && tar czf f.tgz f && tar xzf f.tgz -O | sort -n | tail -1", "1000"),
            ("perl", "perl -e 'print fork ? (wait && \"parent\") : exit'", "parent"),
        ],
    )  # fmt: skip
    async def test_development_tools_work(
        self, sandbox: BubblewrapSandbox, tmp_path: Path, program: str, text: str, says: str
    ) -> None:
        if shutil.which(program, path="/usr/bin:/bin") is None:
            pytest.skip(f"{program} is not installed")
        assert says in await self.run(sandbox, tmp_path, text)

    @needs_filter
    async def test_long_running_programs_have_the_filter_too(self, sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
        """MCP servers are started by other code, which does not pass on the filter's open file."""
        (tmp_path / "try.py").write_text(TRY_FAMILIES)
        command = Command(f"{PYTHON} try.py", tmp_path, (Mount(tmp_path, "/workspace", writable=True),))
        async with sandbox.enclosed(command) as argv:
            process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, close_fds=True)
            output, _ = await process.communicate()
        assert set(map(int, output.split())) == {1, 2, 10, 16}


class TestBubblewrapDisk(DiskContract):
    @pytest.fixture
    async def inner(self) -> AsyncIterator[Sandbox]:
        sandbox = BubblewrapSandbox()
        yield sandbox
        await sandbox.close()

    async def test_disk_space_cannot_be_reserved_without_writing(self, inner: Sandbox, workspace: Path) -> None:
        """`fallocate` reserves a gigabyte in a millisecond, faster than any check of the disk usage. The C library
        falls back to writing the blocks.
        """
        with filter_file() as files:
            if not files:
                pytest.skip("no filter of system calls for this machine")
        reserve = "import os; f = os.open('f', os.O_CREAT | os.O_RDWR); os.posix_fallocate(f, 0, 1000000)"
        result = await self.run(
            inner, workspace, f'fallocate -l 1M x; stat -c %s x; python3 -c "{reserve}"; stat -c %s f'
        )
        assert (result.stdout, b"not supported" in result.stderr) == (b"0\n1000000\n", True)
