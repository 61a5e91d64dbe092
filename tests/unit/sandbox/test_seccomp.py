"""The system call filter. A small BPF interpreter runs it for architectures other than this machine's."""

import ctypes
import ctypes.util
import errno
import struct

import pytest

from shoal.sandbox.seccomp import CALLS, FAMILIES, LAST_CALL, NAMESPACES, PERSONALITIES, filter_program

X86_64, I386, AARCH64, ARM, RISCV = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028, 0xC00000F3
X32 = 0x40000000
RESERVE, ZERO_RANGE, WINDOW_SIZE, TYPE_IN = 0x4030582A, 0x40305839, 0x5413, 0x5412
ALLOWED = 0
MACHINES = (
    ("x86_64", X86_64, "x86_64"), ("x86_64", I386, "i386"), ("aarch64", AARCH64, "aarch64"), ("aarch64", ARM, "arm"),
)  # fmt: skip
every_architecture = pytest.mark.parametrize(("machine", "architecture", "name"), MACHINES)
BY_ARGUMENT = ("socket", "socketpair", "clone", "unshare", "personality", "ioctl")
BEFORE = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "socketcall")


def judged(machine: str, architecture: int, number: int, first: int = 0, second: int = 0) -> int:
    """Return the errno of a system call, or ALLOWED, by interpreting the filter as classic BPF."""
    program = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    data = struct.pack("=IIQQQ", number, architecture, 0, first, second)
    at, held = 0, 0
    while True:
        code, holds, other, value = program[at]
        at += 1
        match code:
            case 0x20:
                (held,) = struct.unpack_from("=I", data, value)
            case 0x54:
                held &= value
            case 0x15:
                at += holds if held == value else other
            case 0x25:
                at += holds if held > value else other
            case 0x45:
                at += holds if held & value else other
            case 0x06:
                return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF
            case _:
                raise AssertionError(f"no instruction for a filter: {code:#x}")


def number_of(call: str, name: str) -> int:
    return getattr(CALLS[call], name)


@every_architecture
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_only_four_socket_families_are_allowed(machine: str, architecture: int, name: str, call: str) -> None:
    number = number_of(call, name)
    found = {family for family in range(256) if judged(machine, architecture, number, family) == ALLOWED}
    assert found == set(FAMILIES.values()) == {1, 2, 10, 16}
    assert judged(machine, architecture, number, 40) == errno.EAFNOSUPPORT
    assert judged(machine, architecture, number, 2**32 + 40) == errno.EAFNOSUPPORT, "the kernel looks at 32 bits"
    assert judged(machine, architecture, number, 2**32 - 1) == errno.EAFNOSUPPORT


@every_architecture
def test_namespace_creation_is_refused(machine: str, architecture: int, name: str) -> None:
    for flag in (1 << bit for bit in range(32)):
        expected = errno.EPERM if flag & NAMESPACES else ALLOWED
        assert judged(machine, architecture, number_of("clone", name), flag | 17) == expected
        expected = errno.EPERM if flag & (NAMESPACES | 0x80) else ALLOWED
        assert judged(machine, architecture, number_of("unshare", name), flag) == expected


@every_architecture
def test_personalities_that_disable_protections_are_refused(machine: str, architecture: int, name: str) -> None:
    number = number_of("personality", name)
    for value in (*PERSONALITIES, 0x40000, 0x40008, 0x0400000, 0x60000, 0x1, 0x6):
        expected = ALLOWED if value in PERSONALITIES else errno.EPERM
        assert judged(machine, architecture, number, value) == expected


@every_architecture
def test_calls_that_reserve_disk_space_are_refused(machine: str, architecture: int, name: str) -> None:
    ioctl = number_of("ioctl", name)
    assert judged(machine, architecture, number_of("fallocate", name)) == errno.EOPNOTSUPP
    assert judged(machine, architecture, ioctl, 3, RESERVE) == errno.EOPNOTSUPP
    assert judged(machine, architecture, ioctl, 3, ZERO_RANGE) == errno.EOPNOTSUPP
    assert judged(machine, architecture, ioctl, 3, TYPE_IN) == errno.EPERM
    assert judged(machine, architecture, ioctl, 3, WINDOW_SIZE) == ALLOWED


@every_architecture
def test_a_listed_call_is_refused_and_every_other_call_is_allowed(machine: str, architecture: int, name: str) -> None:
    listed = {number_of(call, name): call for call in CALLS if number_of(call, name)}
    for number in range(LAST_CALL + 1):
        call = listed.get(number, "")
        if call in BY_ARGUMENT:
            continue
        expected = errno.ENOSYS if call in BEFORE else errno.EOPNOTSUPP if call == "fallocate" else errno.EPERM
        assert judged(machine, architecture, number, 1, 1) == (expected if call else ALLOWED), (number, call)


@every_architecture
def test_unreviewed_calls_are_unavailable(machine: str, architecture: int, name: str) -> None:
    for number in (LAST_CALL + 1, 512, 1024, X32, X32 | 41, X32 | 285, 2**32 - 1):
        assert judged(machine, architecture, number, 1) == errno.ENOSYS
    own = [number for number in range(0x0F0000, 0x0F0010) if judged(machine, architecture, number) == ALLOWED]
    assert own == (list(range(0x0F0001, 0x0F0007)) if name == "arm" else [])


def test_other_architectures_are_unavailable() -> None:
    """The same system call numbers have other meanings on another architecture."""
    assert filter_program("riscv64") == b""
    assert judged("x86_64", RISCV, 0) == judged("aarch64", X86_64, 0) == errno.ENOSYS


LIBRARY = ctypes.util.find_library("seccomp")


@every_architecture
@pytest.mark.skipif(LIBRARY is None, reason="libseccomp is not installed")
def test_the_numbers_match_libseccomp(machine: str, architecture: int, name: str) -> None:
    """libseccomp reads the kernel's tables independently. It returns a negative number if the architecture lacks a
    call.
    """
    library = ctypes.CDLL(LIBRARY)
    for call in CALLS:
        number = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(architecture), call.encode())
        known_to_it = call != "open_tree_attr" and not (name == "i386" and call in ("socket", "socketpair"))
        if known_to_it:
            assert number_of(call, name) == max(number, 0), call
