"""URLs that may be read without approval after untrusted content, because the model did not invent them.

    origin of the URL                                  may be read without approval
    -------------------------------------------------  ----------------------------------------------------
    verbatim in a trusted person's own message         yes, with https if it is written without a scheme
    among the results of the search provider           yes
    a link within the same site, on a page that was    yes, FOLLOWED_MAX links per site and turn, among the
      read without approval                            first LINKS_MAX links of the site
    anything else, such as a composed URL or a link    no, Shoal asks a person
      to another site
    the target of a redirect to another site           no, Shoal does not follow the redirect

Two URLs are equal if they lead to the same request. Scheme and host are compared without case, and the host as IDNA.
A default port and a fragment are ignored. Characters that are invalid in a request line are percent-encoded as
UTF-8. Nothing else is normalized: `%7E` is not `~`, NFC is not NFD, and a trailing slash counts. URLs with a user
name are never read.

If a tool reads from another system and its only argument is a URL, such as `{"url": "https://example.org/"}` for a
tool of an MCP server, the call counts as a read of that URL.

A server learns only which of the given URLs is read, and when. The links of one site can reveal at most
`log2(LINKS_MAX)` = 8 bits per read, so 128 bits in the FOLLOWED_MAX reads of a turn. All given URLs together can
reveal at most `log2(GIVEN_MAX + LINKS_MAX)` < 12 bits per read, in at most READS_MAX reads per turn.
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
"""Maximum number of stored URLs from people and searches. The oldest URLs are dropped first."""
SITES_MAX = 64
LINKS_MAX = 256
FOLLOWED_MAX = 16
READS_MAX = 50
ADDRESS_ARGUMENTS = frozenset({"url", "uri", "link", "href", "address"})
"""Names for an argument that contains a URL to read. They apply to calls without any other argument."""
_ADDRESS = lazy_re.compile(r"(?<![\w.-])[Hh][Tt][Tt][Pp][Ss]?://[^\s<>\"`{}|\\^\x00-\x1f]+")
_HOST = r"(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?::\d{1,5})?"
_REST = r"[^\s<>\"`{}|\\^\x00-\x1f]*"
_BARE = lazy_re.compile(rf"(?<![\w.@:/\\~%=&#-])(?:{_HOST}/{_REST}|[Ww]{{3}}\.{_HOST})(?![\w@-]|\.\w)")
"""Matches a URL without a scheme that has a path, or whose host begins with `www.`. File names such as `notes.md` do
not match.
"""
_ENDING = ".,;:!?'\"*_~)]"


def addresses_in(text: str) -> Iterator[str]:
    """Yield the canonical URLs in a person's message. A URL without a scheme gets https.

    Punctuation or a bracket at the end may or may not belong to the URL, so both readings are yielded.
    """
    bare = (f"https://{word}" for word in _BARE.findall(_ADDRESS.sub(" ", text)))
    for word in chain(_ADDRESS.findall(text), bare):
        for reading in dict.fromkeys((word, word.rstrip(_ENDING), word.partition(")")[0], word.partition("]")[0])):
            if address := canonical_address(reading):
                yield address


def asked_address(tool: Traits, detail: str) -> str:
    """Return the URL that a call reads, or an empty string unless the URL is the only argument of the call."""
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
    """The URLs that were given in a thread's window.

    words: URLs from people and searches, oldest first.
    links: links on pages that were read, by site.
    """

    words: Mapping[str, None] = {}
    links: Mapping[str, tuple[str, ...]] = {}

    def after(self, event: Event) -> "GivenAddresses":
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
        if reads.count >= READS_MAX:
            return False
        site = site_of(address)
        return address in self.words or (
            address in self.links.get(site, ()) and reads.followed.get(site, 0) < FOLLOWED_MAX
        )

    def counted(self, address: str, reads: "WebReads") -> "WebReads":
        site = "" if address in self.words else site_of(address)
        followed = {**reads.followed, site: reads.followed.get(site, 0) + 1} if site else reads.followed
        return WebReads(reads.count + 1, followed)


class WebReads(msgspec.Struct, frozen=True):
    """Reads of a tainted turn: the number of pages, and the number of links followed on each site."""

    count: int = 0
    followed: Mapping[str, int] = {}


NO_ADDRESSES = GivenAddresses()
NO_READS = WebReads()
