"""Check the current access and rights of people whose message or decision was accepted earlier.

This is the only check that is repeated after a message is accepted. It runs when the turn opens, when the turn
continues, and, for all remaining work, in each sweep (threads/departures.py).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import OWN_PLATFORMS, ThreadId, thread_address
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.permissions import TRUST_ORDER, Asker, Trust
from shoal.kernel.ports import ChatAdapter, KnowsRoles
from shoal.kernel.records import Approval
from shoal.kernel.turnstate import TurnState
from shoal.permissions.access import may_decide
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.admissions import Admissions
from shoal.threads.principals import OWNER as PAGE_OWNER
from shoal.threads.principals import Principal, bearer_of

log = logging.getLogger(__name__)

_OURS = frozenset({"", "owner", "shoal"})
"""Ids of authors who need no access rule: no author, the owner, and Shoal itself."""


class Rights(NamedTuple):
    """A person's current roles and maximum trust."""

    roles: tuple[str, ...]
    trust_max: Trust

    def of(self, author: Author) -> Author:
        """Return the author with these roles. The author's trust never increases."""
        trusted = author.trusted and self.trust_max != "untrusted"
        if (author.roles, author.trusted) == (self.roles, trusted):
            return author
        return replace(author, roles=self.roles, trusted=trusted)


NO_RIGHTS = Rights((), "untrusted")


class Presence:
    """Checks people against the current rules, tokens and platforms."""

    def __init__(
        self,
        admissions: Admissions,
        tokens: AccessTokens,
        adapters: Mapping[str, ChatAdapter],
        approvers: Sequence[str],
    ) -> None:
        self._admissions = admissions
        self._tokens = tokens
        self._adapters = adapters
        self._approvers = approvers

    async def rights(self, thread: ThreadId, asked: Prompt | TurnState) -> Rights | None:
        """Return the current rights of the person who asked for a turn, or None if it must not run.

        A subagent's turn ends with the turn that requested it. If the person loses access, the subagent's turn
        continues without rights until then. Raises StoreError.
        """
        if asked.caller is None:
            return await self._rights_in(thread, asked.author)
        return await self._rights_in(asked.caller.root, asked.caller.author) or NO_RIGHTS

    async def has_left(self, thread: ThreadId, author: Author) -> bool:
        """Return True if the author has lost access to the thread. Raises StoreError.

        People on the page and the API are identified by their tokens, so they lose access with their last token.
        """
        address = thread_address(thread)
        if author.roles and address.platform in self._admissions.gated:
            bare = replace(author, roles=())
            if (await self._admissions.of(address.platform, bare, address.channel)).allowed:
                return False  # They have access without roles, so skip the request to the platform.
        return await self._rights_in(thread, author) is None

    async def upholds(self, approval: Approval) -> bool:
        """Return True if the person who allowed this call could still allow it, with at least the same trust.

        Raises StoreError.
        """
        by, before = await self._decider(approval), approval.decided_trust
        if by is None or before is None:
            return False
        by = self._admissions.links.people.asker(by)
        return TRUST_ORDER[by.trust] >= TRUST_ORDER[before] and may_decide(approval, by, self._approvers)

    async def _decider(self, approval: Approval) -> Asker | None:
        user, platform, address = approval.decided_by, approval.decided_on, thread_address(approval.asked_in)
        if platform in OWN_PLATFORMS:
            if user == PAGE_OWNER.author.id:
                return PAGE_OWNER.asker
            return next((bearer.asker for bearer in await self._bearers(user)), None)
        author = Author(user, roles=approval.decided_roles, trusted=False)
        if platform == address.platform and platform in self._admissions.gated:
            author = replace(author, roles=await self._roles(approval.asked_in, author))
            admission = await self._admissions.of(platform, author, address.channel)
        else:
            admission = await self._tokens.admission(f"{platform}:{user}")
        return (
            replace(author.asker(approval.asked_in, admission.trust), platform=platform) if admission.allowed else None
        )

    async def _rights_in(self, thread: ThreadId, author: Author) -> Rights | None:
        address = thread_address(thread)
        if author.id in _OURS or author.is_bot:
            return Rights(author.roles, "owner")
        if address.platform in OWN_PLATFORMS:
            if ":" not in author.id:
                return Rights(author.roles, "owner")
            bearers = await self._bearers(author.id)
            trusted = any(bearer.author.trusted for bearer in bearers)
            return Rights(author.roles, "owner" if trusted else "untrusted") if bearers else None
        if address.platform not in self._admissions.gated:
            return Rights(author.roles, "owner")
        roles = await self._roles(thread, author)
        admission = await self._admissions.of(address.platform, replace(author, roles=roles), address.channel)
        if admission.allowed:
            return Rights(roles, admission.trust)
        # If the list is unreadable, raise: the person may still be paired.
        await self._admissions.pairing.roster(address.platform)
        return None

    async def _roles(self, thread: ThreadId, author: Author) -> tuple[str, ...]:
        address = thread_address(thread)
        adapter = self._adapters.get(address.platform)
        if not author.roles or not isinstance(adapter, KnowsRoles):
            return author.roles
        try:
            return await adapter.roles_of(address.channel, author.id)
        except PlatformError as error:
            log.info("reading roles failed, using roles in message", extra={"person": author.id, "why": str(error)})
            return author.roles

    async def _bearers(self, person: str) -> list[Principal]:
        tokens = [
            token
            for token in await self._tokens.all()
            if token.person == person and not self._tokens.has_expired(token)
        ]
        bearers = [await bearer_of(self._tokens, token) for token in tokens]
        return [bearer for bearer in bearers if bearer is not None]
