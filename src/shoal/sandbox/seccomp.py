"""System call filter for bubblewrap. Denies calls that ordinary commands never need or that evade a limit.

denied                                               reason
--------------------------------------------------   ---------------------------------------------------------------
socket families other than unix, inet, inet6 and     vsock reaches the host of a virtual machine from any network
netlink, alone and in pairs                          namespace, and the others are large and rarely audited
new namespaces, mounting, keyrings, bpf, tracing,    each grants more privileges or exposes other processes' data
other processes' memory, performance counters …
calls missing from this list                         their effect is unknown, and programs assume an older kernel
`io_uring`                                           it could make all of these calls unfiltered
`fallocate` and the older `ioctl`s like it           one call reserves the maximum file size within a millisecond,
                                                     faster than the disk checks
x32 calls                                            the same calls under different numbers

Compilers, interpreters, package managers and git work normally. Debuggers (`ptrace`) and leak checkers based on it do
not. A denied call fails with an error that programs can handle. Written for seccomp's classic BPF (man 2 seccomp), with
the numbers from the kernel's system call tables.
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

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _ABOVE, _ANY_BIT = 0x15, 0x25, 0x45
# offsets in struct seccomp_data (lower halves)
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000

LAST_CALL = 469
"""Highest system call number that was reviewed (`file_setattr`, Linux 6.17). Higher numbers are blocked. New calls have
the same number on all of these architectures.
"""
FAMILIES = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16}
NAMESPACES = 0x7E020000
"""Flags of clone and unshare that create namespaces: mount, cgroup, UTS, IPC, user, process and network."""
_TIME_NAMESPACE = 0x80
"""Flag of unshare that creates a time namespace. In the flags of clone, this bit is part of the exit signal."""
PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Allowed arguments of `personality`: Linux and 32-bit Linux, each with the real kernel version or 2.6, and the query.
Other personalities disable protections.
"""
_RESERVING = (0x5828, 0x582A, 0x5839)  # FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE, without their sizes
_TYPING = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX, which type into a terminal


class _Call(NamedTuple):
    """The numbers of a call by architecture. 0 means that the architecture lacks the call, because none of these
    calls has number 0.
    """

    x86_64: int
    i386: int
    aarch64: int
    arm: int


CALLS = {
    "socket": _Call(41, 359, 198, 281),
    "socketpair": _Call(53, 360, 199, 288),
    "clone": _Call(56, 120, 220, 120),
    "unshare": _Call(272, 310, 97, 337),
    "personality": _Call(135, 136, 92, 136),
    "ioctl": _Call(16, 54, 29, 54),
    "fallocate": _Call(285, 324, 47, 352),
    "io_uring_setup": _Call(425, 425, 425, 425),
    "io_uring_enter": _Call(426, 426, 426, 426),
    "io_uring_register": _Call(427, 427, 427, 427),
    "clone3": _Call(435, 435, 435, 435),
    "socketcall": _Call(0, 102, 0, 0),
    "setns": _Call(308, 346, 268, 375),
    "bpf": _Call(321, 357, 280, 386),
    "userfaultfd": _Call(323, 374, 282, 388),
    "perf_event_open": _Call(298, 336, 241, 364),
    "ptrace": _Call(101, 26, 117, 26),
    "process_vm_readv": _Call(310, 347, 270, 376),
    "process_vm_writev": _Call(311, 348, 271, 377),
    "kcmp": _Call(312, 349, 272, 378),
    "pidfd_getfd": _Call(438, 438, 438, 438),
    "add_key": _Call(248, 286, 217, 309),
    "request_key": _Call(249, 287, 218, 310),
    "keyctl": _Call(250, 288, 219, 311),
    "kexec_load": _Call(246, 283, 104, 347),
    "kexec_file_load": _Call(320, 0, 294, 401),
    "create_module": _Call(174, 127, 0, 0),
    "init_module": _Call(175, 128, 105, 128),
    "finit_module": _Call(313, 350, 273, 379),
    "delete_module": _Call(176, 129, 106, 129),
    "mount": _Call(165, 21, 40, 21),
    "umount": _Call(0, 22, 0, 0),
    "umount2": _Call(166, 52, 39, 52),
    "pivot_root": _Call(155, 217, 41, 218),
    "open_tree": _Call(428, 428, 428, 428),
    "move_mount": _Call(429, 429, 429, 429),
    "fsopen": _Call(430, 430, 430, 430),
    "fsconfig": _Call(431, 431, 431, 431),
    "fsmount": _Call(432, 432, 432, 432),
    "fspick": _Call(433, 433, 433, 433),
    "mount_setattr": _Call(442, 442, 442, 442),
    "open_tree_attr": _Call(467, 467, 467, 467),
    "open_by_handle_at": _Call(304, 342, 265, 371),
    "fanotify_init": _Call(300, 338, 262, 367),
    "lookup_dcookie": _Call(212, 253, 18, 249),
    "quotactl": _Call(179, 131, 60, 131),
    "quotactl_fd": _Call(443, 443, 443, 443),
    "swapon": _Call(167, 87, 224, 87),
    "swapoff": _Call(168, 115, 225, 115),
    "reboot": _Call(169, 88, 142, 88),
    "syslog": _Call(103, 103, 116, 103),
    "acct": _Call(163, 51, 89, 51),
    "nfsservctl": _Call(180, 169, 42, 169),
    "uselib": _Call(134, 86, 0, 86),
    "_sysctl": _Call(156, 149, 0, 149),
    "vhangup": _Call(153, 111, 58, 111),
    "modify_ldt": _Call(154, 123, 0, 0),
    "iopl": _Call(172, 110, 0, 0),
    "ioperm": _Call(173, 101, 0, 0),
    "vm86old": _Call(0, 113, 0, 0),
    "vm86": _Call(0, 166, 0, 0),
}
"""Numbers of the filtered system calls. Calls listed after `ioctl` are blocked for all arguments."""
_BY_ARGUMENT = frozenset({"socket", "socketpair", "clone", "unshare", "personality", "ioctl"})
_UNKNOWN = frozenset({"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "socketcall"})
"""Calls that fail with ENOSYS, which makes programs fall back to older calls."""

_MACHINES = {
    "x86_64": (("x86_64", 0xC000003E), ("i386", 0x40000003)),
    "aarch64": (("aarch64", 0xC00000B7), ("arm", 0x40000028)),
}
"""Architectures of the programs that each machine runs, with the kernel's audit numbers."""
_ARM_OWN_CALLS = range(0x0F0001, 0x0F0007)
"""System calls that only 32-bit ARM programs have, for breakpoints, caches and the thread pointer."""


@cache
def filter_program(machine: str) -> bytes:
    """Return the filter for the machine that `platform.machine()` names. The filter is empty for an unknown machine."""
    known = _MACHINES.get(machine, ())
    sections = b""
    for architecture, audit in known:
        numbers = {name: number for name, call in CALLS.items() if (number := getattr(call, architecture))}
        allow = _code(_RETURN, _ALLOW)
        body = _code(_LOAD, _NUMBER)
        if architecture == "arm":
            body += b"".join(_if(_EQUAL, number, allow) for number in _ARM_OWN_CALLS)
        body += _if(_ABOVE, LAST_CALL, _fail(errno.ENOSYS))
        for name, number in numbers.items():
            if name not in _BY_ARGUMENT:
                error = errno.ENOSYS if name in _UNKNOWN else errno.EPERM
                if name == "fallocate":
                    error = errno.EOPNOTSUPP  # On this error, the C library falls back to writing.
                body += _if(_EQUAL, number, _fail(error))
        families = _code(_LOAD, _FIRST_ARGUMENT) + _only(tuple(FAMILIES.values()), errno.EAFNOSUPPORT)
        personalities = _code(_LOAD, _FIRST_ARGUMENT) + _only(PERSONALITIES, errno.EPERM)
        controls = _code(_LOAD, _SECOND_ARGUMENT) + _code(_AND, 0xFFFF)
        controls += b"".join(_if(_EQUAL, value, _fail(errno.EOPNOTSUPP)) for value in _RESERVING)
        controls += b"".join(_if(_EQUAL, value, _fail(errno.EPERM)) for value in _TYPING) + allow
        for name, then in (
            ("socket", families),
            ("socketpair", families),
            ("clone", _without(NAMESPACES)),
            ("unshare", _without(NAMESPACES | _TIME_NAMESPACE)),
            ("personality", personalities),
            ("ioctl", controls),
        ):
            body += _if(_EQUAL, numbers[name], then)
        sections += _if(_EQUAL, audit, body + allow)
    return _code(_LOAD, _ARCHITECTURE) + sections + _fail(errno.ENOSYS) if known else b""


@contextmanager
def filter_file() -> Generator[tuple[int, ...]]:
    """Yield the filter as an open file for bubblewrap, or an empty tuple if this machine has no filter."""
    has_filters = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    program = filter_program(platform.machine()) if has_filters else b""
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


def _only(values: Sequence[int], error: int) -> bytes:
    """Allow a call only if the loaded word has one of these values."""
    return b"".join(_if(_EQUAL, value, _code(_RETURN, _ALLOW)) for value in values) + _fail(error)


def _without(flags: int) -> bytes:
    return _code(_LOAD, _FIRST_ARGUMENT) + _if(_ANY_BIT, flags, _fail(errno.EPERM)) + _code(_RETURN, _ALLOW)


def _fail(error: int) -> bytes:
    return _code(_RETURN, _FAIL | error)


def _if(comparison: int, value: int, then: bytes) -> bytes:
    """If the loaded word matches, run `then`, which must return. Otherwise continue after `then`."""
    return _code(comparison, value, skip=len(then) // 8) + then


def _code(code: int, value: int, skip: int = 0) -> bytes:
    """Encode one instruction. A failed comparison skips `skip` instructions."""
    return struct.pack("=HBBI", code, 0, skip, value)
