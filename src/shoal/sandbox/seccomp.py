"""A filter of system calls for bubblewrap: refuses what takes room on the disk faster than data can be written.

One call of `fallocate` reserves as much as the longest file may have, in a millisecond; no look at the disk is that
quick. Programs go on without it: the C library writes instead. Also refused are the older `ioctl`s that do the same,
and `io_uring`, which could do it unseen (and many programs do without). Written for seccomp's classic BPF (man 2
seccomp), with the numbers of the kernel's system call tables.
"""

import errno
import os
import platform
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_NUMBER, _ARCHITECTURE, _SECOND_ARGUMENT = 0, 4, 24  # offsets in struct seccomp_data; the argument's lower half
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_X32 = 0x40000000
_RESERVING = (0x5828, 0x582A, 0x5839)  # FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE, without their sizes
_IO_URING_SETUP = 425


class _Calls(NamedTuple):
    """The numbers of system calls under one architecture (as the kernel's audit names it)."""

    architecture: int
    fallocate: tuple[int, ...]
    ioctl: tuple[int, ...]
    io_uring: tuple[int, ...] = (_IO_URING_SETUP,)


_CALLS = {
    "x86_64": (
        _Calls(0xC000003E, (285, _X32 | 285), (16, _X32 | 514), (_IO_URING_SETUP, _X32 | _IO_URING_SETUP)),
        _Calls(0x40000003, (324,), (54,)),
    ),
    "aarch64": (_Calls(0xC00000B7, (47,), (29,)), _Calls(0x40000028, (352,), (54,))),
}


def filter_program(machine: str) -> bytes:
    """The filter for a machine (as `platform.machine()` names it); empty where its system calls are not known here."""
    known = _CALLS.get(machine, ())
    return _load(_ARCHITECTURE) + b"".join(map(_section, known)) + _return(_ALLOW) if known else b""


@contextmanager
def filter_file() -> Generator[tuple[int, ...]]:
    """The filter as an open file to hand to bubblewrap, closed afterwards; none where there can be none."""
    program = _program()
    if not program:
        yield ()
        return
    file = os.memfd_create("seccomp")
    try:
        os.write(file, program)
        os.lseek(file, 0, os.SEEK_SET)
        yield (file,)
    finally:
        os.close(file)


@cache
def _program() -> bytes:
    has_filters = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    return filter_program(platform.machine()) if has_filters else b""


def _section(calls: _Calls) -> bytes:
    """What is done under one architecture; begins with the architecture loaded, and leaves it so for the next."""
    reserving = _load(_SECOND_ARGUMENT) + _code(_AND, 0xFFFF) + _refuse(_RESERVING, errno.EOPNOTSUPP) + _return(_ALLOW)
    body = _load(_NUMBER) + _refuse(calls.fallocate, errno.EOPNOTSUPP) + _refuse(calls.io_uring, errno.ENOSYS)
    body += b"".join(_if_equal(number, reserving) for number in calls.ioctl) + _return(_ALLOW)
    return _if_equal(calls.architecture, body)


def _refuse(values: Sequence[int], error: int) -> bytes:
    return b"".join(_if_equal(value, _return(_FAIL | error)) for value in values)


def _if_equal(value: int, then: bytes) -> bytes:
    """Do `then`, which ends by returning, if the loaded value is this one; go on behind it otherwise."""
    return _code(_EQUAL, value, skip=len(then) // 8) + then


def _load(offset: int) -> bytes:
    return _code(_LOAD, offset)


def _return(value: int) -> bytes:
    return _code(_RETURN, value)


def _code(code: int, value: int, skip: int = 0) -> bytes:
    """One instruction, which where it compares skips so many others unless the values are equal."""
    return struct.pack("=HBBI", code, 0, skip, value)
