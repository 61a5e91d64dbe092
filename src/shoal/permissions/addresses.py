"""Addresses that may be read without approval after untrusted content, because the model did not invent them.

    origin of the address                              may be read without approval
    -------------------------------------------------  ----------------------------------------------------
    verbatim in a trusted person's own message         yes; with https if it is written without a scheme
    among the results of the search provider           yes
    a link within the same site, on a page that was    yes, LINKS_MAX per site, FOLLOWED_MAX per turn
      read without approval
    anything else: composed, a link to another site    no: Shoal asks a person
    the end of a redirect to another site              not followed

Two addresses are equal if they lead to the same request: scheme and host compare without case, the host as IDNA, a
default port and a fragment do not count, and characters that are invalid in a request line are percent-encoded as
UTF-8. Nothing else is normalized: `%7E` is not `~`, NFC is not NFD, and a trailing slash counts. Addresses with a user
name are never read.

A read of another system whose only argument is an address, such as `{"url": "https://example.org/"}` for a tool of an
MCP server, is a read of that address.

A server learns only which of the given addresses is read, and when. By the links of one site that is at most
`log2(LINKS_MAX)` = 8 bits per read and FOLLOWED_MAX reads per turn, so 128 bits. By all given addresses together it is
at most `log2(GIVEN_MAX + LINKS_MAX)` < 12 bits per read and READS_MAX reads per turn.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec
from msgspec.structs import replace

from shoal.kernel import lazy_re
from shoal.kernel.events import Cleared, Event, GivenLinks, ToolFinished, UserSaid
from shoal.kernel.traits import Traits
from shoal.kernel.untrusted import UNREADABLE
from shoal.net.addresses import canonical_address, site_of

GIVEN_MAX = 2_000
"""Maximum number of URLs from people and searches. The newest are kept."""
SITES_MAX = 64
LINKS_MAX = 256
"""Maximum number of links that may be followed on a site. The first ones on its pages count."""
FOLLOWED_MAX = 16
"""Maximum number of links on a site that a turn may follow without approval."""
READS_MAX = 50
"""Maximum number of pages that a tainted turn may read without approval."""
ADDRESS_ARGUMENTS = frozenset({"url", "uri", "link", "href", "address"})
"""Names of the argument of a read whose only argument is a URL."""
_ADDRESS = lazy_re.compile(r"(?<![\w.-])[Hh][Tt][Tt][Pp][Ss]?://[^\s<>\"`{}|\\^\x00-\x1f]+")
_HOST = r"(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?::\d{1,5})?"
_REST = r"[^\s<>\"`{}|\\^\x00-\x1f]*"
_BARE = lazy_re.compile(rf"(?<![\w.@:/\\~%=&#-])(?:{_HOST}/{_REST}|[Ww]{{3}}\.{_HOST})(?![\w@-]|\.\w)")
"""Matches a URL without a scheme. It has a path, or its host begins with `www.`. A bare `notes.md` is a file."""
_ENDING = ".,;:!?'\"*_~)]"


def addresses_in(text: str) -> Iterator[str]:
    """Return the canonical URLs in a person's message. A URL without a scheme gets https.

    Punctuation or a bracket at the end is ambiguous, so both readings are returned.
    """
    bare = (f"https://{word}" for word in _BARE.findall(_ADDRESS.sub(" ", text)))
    for word in chain(_ADDRESS.findall(text), bare):
        for reading in dict.fromkeys((word, word.rstrip(_ENDING), word.partition(")")[0], word.partition("]")[0])):
            if address := canonical_address(reading):
                yield address


def asked_address(tool: Traits, detail: str) -> str:
    """Return the URL if it is the call's only argument, otherwise an empty string."""
    if tool.names == "address":
        return detail
    if not (tool.read_only and tool.open_world and detail.startswith("{")):
        return ""
    try:
        arguments = msgspec.json.decode(detail, type=dict[str, str])
    except UNREADABLE:
        return ""
    if len(arguments) != 1 or ADDRESS_ARGUMENTS.isdisjoint(arguments):
        return ""
    (value,) = arguments.values()
    address = canonical_address(value)
    return address if value in (address, address.removesuffix("/")) else ""


class GivenAddresses(msgspec.Struct, frozen=True):
    """The URLs given in a thread's window: from people and searches, oldest first, and links by site."""

    words: Mapping[str, None] = {}
    links: Mapping[str, tuple[str, ...]] = {}

    def after(self, event: Event) -> "GivenAddresses":
        """Return the given URLs after one more event of the journal."""
        match event.data:
            case UserSaid(origin="person", backfill=False, caller=None) as said if said.author.trusted:
                return self._with(addresses_in(said.text))
            case ToolFinished(links=GivenLinks(site="", addresses=found)):
                return self._with(iter(found))
            case ToolFinished(links=GivenLinks(site=site, addresses=found)):
                links = tuple(dict.fromkeys((*self.links.get(site, ()), *found)))[:LINKS_MAX]
                sites = {**{name: known for name, known in self.links.items() if name != site}, site: links}
                return replace(self, links=dict(list(sites.items())[-SITES_MAX:]))
            case Cleared():
                return GivenAddresses()
            case _:
                return self

    def _with(self, addresses: Iterator[str]) -> "GivenAddresses":
        added = dict.fromkeys(addresses)
        if not added:
            return self
        words = {**{word: None for word in self.words if word not in added}, **added}
        return replace(self, words=dict(list(words.items())[-GIVEN_MAX:]))

    def gives(self, address: str, reads: "WebReads") -> bool:
        """Return whether a canonical URL may be read, considering this turn's earlier reads."""
        if reads.count >= READS_MAX:
            return False
        site = site_of(address)
        return address in self.words or (
            address in self.links.get(site, ()) and reads.followed.get(site, 0) < FOLLOWED_MAX
        )

    def counted(self, address: str, reads: "WebReads") -> "WebReads":
        """Return the turn's reads plus this one."""
        site = "" if address in self.words else site_of(address)
        followed = {**reads.followed, site: reads.followed.get(site, 0) + 1} if site else reads.followed
        return WebReads(reads.count + 1, followed)


class WebReads(msgspec.Struct, frozen=True):
    """Web reads of a tainted turn: the number of pages, and the number of links of each site."""

    count: int = 0
    followed: Mapping[str, int] = {}


NO_ADDRESSES = GivenAddresses()
NO_READS = WebReads()
