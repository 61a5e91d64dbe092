"""The filter of system calls, run by an interpreter of its own for machines that are not here."""

import errno
import struct

import pytest

from shoal.sandbox.seccomp import filter_program

X86_64, I386, AARCH64, ARM, RISCV = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028, 0xC00000F3
X32 = 0x40000000
RESERVE, ZERO_RANGE, WINDOW_SIZE = 0x4030582A, 0x40305839, 0x5413
ALLOWED = 0


def judged(machine: str, architecture: int, number: int, argument: int = 0) -> int:
    """The error a call ends with, by the rules of classic BPF; ALLOWED when it is let through."""
    program = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    data = struct.pack("=IIQQQ", number, architecture, 0, 3, argument)
    at, held = 0, 0
    while True:
        code, equal, other, value = program[at]
        at += 1
        match code:
            case 0x20:
                (held,) = struct.unpack_from("=I", data, value)
            case 0x54:
                held &= value
            case 0x15:
                at += equal if held == value else other
            case 0x06:
                return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF
            case _:
                raise AssertionError(f"no instruction for a filter: {code:#x}")


@pytest.mark.parametrize(
    ("machine", "architecture", "fallocate", "ioctl", "flag"),
    [
        ("x86_64", X86_64, 285, 16, 0),
        ("x86_64", X86_64, 285, 514, X32),
        ("x86_64", I386, 324, 54, 0),
        ("aarch64", AARCH64, 47, 29, 0),
        ("aarch64", ARM, 352, 54, 0),
    ],
)
def test_what_reserves_room_is_refused(machine: str, architecture: int, fallocate: int, ioctl: int, flag: int) -> None:
    """Under each architecture that a program of the machine may have, and nothing else."""
    assert judged(machine, architecture, fallocate | flag) == errno.EOPNOTSUPP
    assert judged(machine, architecture, 425 | flag) == errno.ENOSYS
    assert judged(machine, architecture, ioctl | flag, RESERVE) == errno.EOPNOTSUPP
    assert judged(machine, architecture, ioctl | flag, ZERO_RANGE) == errno.EOPNOTSUPP
    assert judged(machine, architecture, ioctl | flag, WINDOW_SIZE) == ALLOWED
    others = set(range(512)) - {fallocate, ioctl, 425}
    assert {judged(machine, architecture, number | flag, RESERVE) for number in others} == {ALLOWED}


def test_a_machine_that_is_not_known_has_no_filter() -> None:
    """Its numbers mean something else."""
    assert filter_program("riscv64") == b""
    assert judged("x86_64", RISCV, 285) == ALLOWED
