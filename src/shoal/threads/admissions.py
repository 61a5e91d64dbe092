"""Resolve a person's current access to a channel from rules, pairings and the person's other identities."""

from collections.abc import Collection

import msgspec

from shoal.kernel.ids import ThreadId, thread_address
from shoal.kernel.messages import (
    Author,
)
from shoal.kernel.moved import ids_of
from shoal.permissions.access import (
    STRANGER,
    Admission,
    Links,
    admit,
    vouched,
)
from shoal.threads.pairing import Pairing


class Admissions(msgspec.Struct, frozen=True, eq=False):
    """Resolves people's access. `gated` contains the platforms that have an access gate."""

    links: Links
    pairing: Pairing
    gated: Collection[str]

    async def of(self, platform: str, author: Author, channel: str) -> Admission:
        rules = self.links.rules[platform]
        if rules.channels and channel not in rules.channels:  # The rules may contain a newer id of the same channel.
            ids = await ids_of(self.pairing.store.settings, platform, channel)
            if not set(rules.channels).isdisjoint(ids):
                rules = msgspec.structs.replace(rules, channels=(*rules.channels, channel))
                self.links.rules[platform] = rules
        person = self.links.people.find(f"{platform}:{author.id}")
        if person.roles:
            author = msgspec.structs.replace(author, roles=(*author.roles, *person.roles))
        verdict = admit(rules, author, channel)
        if verdict is STRANGER and author.id and not author.is_bot:
            verdict = admit(rules, author, channel, await self.pairing.people(platform))
        if verdict is STRANGER and author.id and not author.is_bot:  # The author may be a channel that has a new id.
            for later in (await ids_of(self.pairing.store.settings, platform, author.id))[1:]:
                as_later = admit(rules, msgspec.structs.replace(author, id=later), channel)
                verdict = as_later if as_later.allowed else verdict
        if verdict.owner or author.is_bot:
            return verdict
        # Access through another identity also counts, unless the rules exclude the channel. An owner is the owner
        # everywhere.
        is_closed = rules.channels and channel not in rules.channels
        for identity in person.identities:
            there, _, user = identity.partition(":")
            rules_there = self.links.rules.get(there)
            if rules_there is None or there == platform:
                continue
            admission = vouched(rules_there, user, await self.pairing.people(there))
            if admission.owner:
                return admission
            if admission.allowed and not is_closed:
                verdict = admission
        return verdict

    async def judge(self, thread: ThreadId, author: Author) -> Author:
        """Return the author of an earlier message with the author's current trust. An author is trusted only if the
        platform has an access gate that trusts them in this channel.
        """
        address = thread_address(thread)
        trusted = address.platform in self.gated and (await self.of(address.platform, author, address.channel)).trusted
        return msgspec.structs.replace(author, trusted=trusted)
