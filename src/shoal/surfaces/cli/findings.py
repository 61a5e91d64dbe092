"""Findings of `shoal doctor`."""

from collections.abc import AsyncGenerator, Callable
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.settings import Config
from shoal.surfaces.cli.context import CommandContext


class DoctorFinding(msgspec.Struct, frozen=True):
    """The outcome of one check. `todo` is the remedy, or empty if nothing needs to be done."""

    check: str
    status: Literal["ok", "warn", "fail"]
    message: str
    todo: str = ""


Check: TypeAlias = Callable[[CommandContext, Config], AsyncGenerator[DoctorFinding]]
"""A check of `shoal doctor`. It yields findings, changes nothing, and works whether or not Shoal is running."""


def ok(check: str, message: str) -> DoctorFinding:
    return DoctorFinding(check, "ok", message)


def warn(check: str, message: str, todo: str) -> DoctorFinding:
    return DoctorFinding(check, "warn", message, todo)


def fail(check: str, message: str, todo: str) -> DoctorFinding:
    return DoctorFinding(check, "fail", message, todo)
