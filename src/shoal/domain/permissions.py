"""Actions and decisions: the words of the permission engine."""

from typing import Literal, TypeAlias

import msgspec

Decision: TypeAlias = Literal["allow", "ask", "deny"]

STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}


class Action(msgspec.Struct, frozen=True):
    """One thing a call will do: `tool:<name>:<detail>`, built from resolved arguments only.

    `opaque` marks what a rule must name itself (eval, sh -c, unparsable text); `whole` marks the full text of a
    shell command, which deny patterns see beside its parts.
    """

    text: str
    opaque: bool = False
    whole: bool = False


class Ruling(msgspec.Struct, frozen=True):
    """The engine's answer for one action, with the rule (list and pattern) that decided; empty when none matched."""

    action: str
    decision: Decision
    rule: str = ""


class Asker(msgspec.Struct, frozen=True):
    """Who a call is made for: from the inbound message, never from a model's words."""

    user: str = ""
    name: str = ""
    roles: tuple[str, ...] = ()
    platform: str = ""
    channel: str = ""
    kind: Literal["direct", "group"] = "direct"
