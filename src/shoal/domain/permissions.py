"""Actions and decisions: the words of the permission engine."""

from typing import Literal, TypeAlias

import msgspec

Decision: TypeAlias = Literal["allow", "ask", "deny"]

STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}


class Action(msgspec.Struct, frozen=True):
    """One thing a call will do: `tool:<name>:<detail>`, built from resolved arguments only.

    `opaque` marks what an allow rule must name itself (eval, sh -c, unparsable text): its literal beginning has to
    reach to the end of `naming`, a prefix of `text` (empty: the whole text). `whole` marks the full text of a shell
    command and other views of it that only deny patterns see beside its parts. `also` are other names of the same
    thing: a redirection is `tool:bash:> PATH` and `tool:write:PATH`; a rule for either counts.
    """

    text: str
    opaque: bool = False
    whole: bool = False
    naming: str = ""
    also: tuple[str, ...] = ()


class Ruling(msgspec.Struct, frozen=True):
    """The engine's answer for one action, with the rule (list and pattern) that decided; empty when none matched."""

    action: str
    decision: Decision
    rule: str = ""


class Asker(msgspec.Struct, frozen=True):
    """Who a call is made for: from the inbound message, never from a model's words.

    `known_as` has all identities (PLATFORM:USER) of a person whose identities are linked, this one among them.
    """

    user: str = ""
    name: str = ""
    roles: tuple[str, ...] = ()
    platform: str = ""
    channel: str = ""
    kind: Literal["direct", "group"] = "direct"
    known_as: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """PLATFORM:USER."""
        return f"{self.platform}:{self.user}"

    @property
    def identities(self) -> tuple[str, ...]:
        """Every PLATFORM:USER of the person, the same one first wherever they speak."""
        return self.known_as or (self.identity,)
