"""Who calls or is told something, and how far they may go: where scopes, own threads and agents are compared.

    token          may use
    ------------   --------------------------------------------------------------------------------------------
    the home's     every call and thread, as the owner
    admin          every call and thread, as its person
    read, approve  calls that list its scope; every thread, with an agent only those of the agent
    chat           calls that list its scope; threads of its person's own channel on the page and the API, and the
                   subagents' that work for them; with an agent, only those of that agent

A `chat` token, and any with an agent, is confined: of the calls that name no thread it gets only those that narrow
their answer to what it may see. A thread that the caller may not see is answered like one that does not exist.
"""

from datetime import UTC, datetime

import msgspec

from shoal.kernel.errors import NotFound
from shoal.kernel.ids import ThreadId, encode_part, is_child, personal_channel
from shoal.kernel.messages import Author
from shoal.kernel.permissions import AccessToken, Asker, Trust
from shoal.store.journal import Journal
from shoal.threads.access_tokens import AccessTokens

HOME_TOKEN = AccessToken("", "", "admin", "web:owner", "", datetime.fromtimestamp(0, UTC))
"""The one in the home's file `token` or in web.token; it is not stored and cannot be revoked."""
ANCESTORS_MAX = 32
"""How many callers above a subagent's thread are looked through for the conversation that it works for."""


class Principal(msgspec.Struct, frozen=True):
    """A person with a token; `author` is who they are in what they write."""

    token: AccessToken
    author: Author
    by_cookie: bool = False

    @property
    def person(self) -> str:
        """PLATFORM:USER."""
        return self.token.person

    @property
    def asker(self) -> Asker:
        """Who asks, for the permission rules and approvals."""
        by_name: Trust = "trusted" if self.author.trusted else "untrusted"
        return Asker(
            trust="owner" if self.author is OWNER.author else by_name,
            user=self.author.id,
            name=self.author.name,
            roles=self.author.roles,
            platform="web",
            token=self.token.name,
        )

    @property
    def is_confined(self) -> bool:
        """Whether there are threads that they may not read."""
        return self.token.scope == "chat" or bool(self.token.agent)

    @property
    def channel(self) -> str:
        """The channel of their own; empty for the owner, who needs none."""
        return "" if self.author is OWNER.author else personal_channel(self.person)

    @property
    def channels(self) -> tuple[str, ...]:
        """What the ids of a chat token's threads begin with; none for those who are not bound to a channel."""
        if self.token.scope != "chat":
            return ()
        return tuple(f"{platform}:{encode_part(self.channel)}:" for platform in ("web", "openai"))

    def owns(self, thread: ThreadId) -> bool:
        """Whether the thread is one of their own conversations, or they are not bound to these."""
        return self.token.scope != "chat" or thread.startswith(self.channels)


OWNER = Principal(HOME_TOKEN, Author("owner", trusted=True))
"""Whoever holds the home's token; it is the owner's, so there is nobody else."""
OWNER_ON_PAGE = msgspec.structs.replace(OWNER, by_cookie=True)


async def may_use(principal: Principal, journal: Journal, thread: ThreadId) -> bool:
    """Whether a thread is there for this caller, be it begun or not. Raises StoreError."""
    if not principal.is_confined:
        return True
    root = thread
    for _ in range(ANCESTORS_MAX):
        if not is_child(root):
            break
        above = await journal.thread(root)
        if above is None or not above.parent:
            return False
        root = ThreadId(above.parent)
    if not principal.owns(root):
        return False
    agent = principal.token.agent
    if not agent:
        return True
    info = await journal.thread(thread)
    if info is None:
        return principal.token.scope == "chat"
    return info.agent == agent or (not info.agent and principal.token.scope == "chat")


def no_such_thread(thread: ThreadId) -> NotFound:
    """What is said of a thread that does not exist, and of one that the caller may not see."""
    return NotFound(f"There is no thread {thread[:200]}. `shoal threads list` shows them.")


async def bearer_of(tokens: AccessTokens, token: AccessToken) -> Principal | None:
    """Who holds a token that is good; None when its person has no access any more. Raises StoreError."""
    author = await tokens.author(token)
    if author is None:
        return None
    if token.scope == "admin" and token.person == HOME_TOKEN.person:  # the owner, as with the home's own token
        author = OWNER.author
    return Principal(token, author)
