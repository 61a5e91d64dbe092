"""Authenticated callers and their rights.

    token          may use
    ------------   --------------------------------------------------------------------------------------------
    the home's     every call and thread, as the owner
    admin          every call and thread, as its person
    read, approve  calls that list its scope, and every thread. With an agent, only the threads of that agent.
    chat           calls that list its scope, threads in its person's channel on the page and the API, and
                   threads of subagents that work for them. With an agent, only the threads of that agent.

A `chat` token, and any token with an agent, is confined. It may use a call that names no thread only if the call
limits its response to visible threads. A thread that the caller may not see is treated as if it did not exist.
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
"""The home's own token, from the file `token` or from web.token. It is not stored in the database and cannot be
revoked.
"""
ANCESTORS_MAX = 32
"""Maximum number of parent threads that are followed from a subagent's thread to its conversation."""


class Principal(msgspec.Struct, frozen=True):
    """A person with a token. `author` is their identity as an author of messages."""

    token: AccessToken
    author: Author
    by_cookie: bool = False

    @property
    def person(self) -> str:
        return self.token.person

    @property
    def asker(self) -> Asker:
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
        """True if some threads are hidden from this person."""
        return self.token.scope == "chat" or bool(self.token.agent)

    @property
    def channel(self) -> str:
        """The person's own channel. Empty for the owner, who does not need one."""
        return "" if self.author is OWNER.author else personal_channel(self.person)

    @property
    def channels(self) -> tuple[str, ...]:
        """The id prefixes of a chat token's threads. Empty if the token is not limited to a channel."""
        if self.token.scope != "chat":
            return ()
        return tuple(f"{platform}:{encode_part(self.channel)}:" for platform in ("web", "openai"))

    def owns(self, thread: ThreadId) -> bool:
        """Return True if the thread is the person's own, or if the token is not limited to the person's own threads."""
        return self.token.scope != "chat" or thread.startswith(self.channels)


OWNER = Principal(HOME_TOKEN, Author("owner", trusted=True))
OWNER_ON_PAGE = msgspec.structs.replace(OWNER, by_cookie=True)


async def may_use(principal: Principal, journal: Journal, thread: ThreadId) -> bool:
    """Return True if the caller may use a thread, which need not exist yet. Raises StoreError."""
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
    """Return the same error for a thread that does not exist and for a hidden thread."""
    return NotFound(f"Thread {thread[:200]} does not exist. `shoal threads list` shows all threads.")


async def bearer_of(tokens: AccessTokens, token: AccessToken) -> Principal | None:
    """Return the bearer of a valid token, or None if its person has lost access. Raises StoreError."""
    author = await tokens.author(token)
    if author is None:
        return None
    # This token acts as the owner, like the home's own token.
    if token.scope == "admin" and token.person == HOME_TOKEN.person:
        author = OWNER.author
    return Principal(token, author)
