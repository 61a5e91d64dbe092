"""Addresses that a tainted turn may read without approval. No secret can leave through them."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import reduce
from urllib.parse import quote

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from shoal.kernel.events import Cleared, Event, EventData, GivenLinks, Steered, ToolFinished, UserSaid
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author
from shoal.kernel.permissions import Action
from shoal.net.addresses import canonical_address, site_of
from shoal.permissions.addresses import (
    FOLLOWED_MAX,
    GIVEN_MAX,
    LINKS_MAX,
    NO_READS,
    READS_MAX,
    GivenAddresses,
    WebReads,
    addresses_in,
)
from shoal.permissions.effects import Situation
from shoal.permissions.profiles import Profiles, decide_all
from shoal.permissions.taint import Source, TaintState, gate
from tests.known_tools import TRAITS

ANN, EVE = Author("ann", trusted=True), Author("eve", trusted=False)
SEALED = Situation(isolated=True, sealed=True, covered=True, trusted=True, tainted=True)
PAGE = TaintState((Source(1, "the page https://a.example/"),), active=True)
STANDARD = Profiles(TRAITS).get("standard")
SECRET = "hunter2-correct-horse"


def window(*data: EventData) -> GivenAddresses:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    events = [Event(seq, ThreadId("a:b:c"), TurnId("t"), now, item) for seq, item in enumerate(data, 1)]
    return reduce(GivenAddresses.after, events, GivenAddresses())


def found(site: str, *addresses: str) -> ToolFinished:
    return ToolFinished(CallId("c"), "read_url", "text", links=GivenLinks(site, addresses))


def runs(given_addresses: GivenAddresses, url: str, reads: WebReads = NO_READS) -> bool:
    address = canonical_address(url)
    if not address:
        return False
    actions = (Action(f"tool:read_url:{address}"),)
    decision = decide_all(STANDARD, actions, SEALED)[0]
    return gate(decision, actions, PAGE, STANDARD, SEALED, lambda one: given_addresses.gives(one, reads))[0] == "allow"


@pytest.mark.parametrize(
    ("words", "asked", "same"),
    [
        ("read https://a.example/x", "https://a.example/x", True),
        ("read https://a.example/x.", "https://a.example/x", True),
        ("(see https://a.example/x)", "https://a.example/x", True),
        ("[x](https://a.example/x) there", "https://a.example/x", True),
        ("https://en.example/wiki/A_(b)", "https://en.example/wiki/A_(b)", True),
        ("HTTPS://A.Example/x", "https://a.example/x", True),
        ("https://a.example:443/x", "https://a.example/x", True),
        ("https://a.example", "https://a.example/", True),
        ("https://a.example/x#part", "https://a.example/x#other", True),
        ("https://bücher.example/", "https://xn--bcher-kva.example/", True),
        ("https://a.example/ü", "https://a.example/%C3%BC", True),
        ("https://a.example/x", "https://a.example/X", False),
        ("https://a.example/x", "https://a.example/x/", False),
        ("https://a.example/x", "https://a.example/x?y", False),
        ("https://a.example/x", "http://a.example/x", False),
        ("https://a.example/x", "https://a.example:8443/x", False),
        ("https://a.example/x", "https://b.a.example/x", False),
        ("https://a.example/~x", "https://a.example/%7Ex", False),
        ("https://a.example/%2f", "https://a.example/%2F", False),
        ("https://a.example/\u00fc", "https://a.example/u\u0308", False),
        ("https://a.example/x y", "https://a.example/x%20y", False),
        ("https://user@a.example/x", "https://a.example/x", False),
        ("https://a.example/x", "https://user:secret@a.example/x", False),
        ("a.example/x", "https://a.example/x", True),
        ("read a.example/x.", "https://a.example/x", True),
        ("(see a.example/x)", "https://a.example/x", True),
        ("www.a.example", "https://www.a.example/", True),
        ("WWW.A.example, please", "https://www.a.example/", True),
        ("www.a.example:8443/x", "https://www.a.example:8443/x", True),
        ("a.example/", "https://a.example/", True),
        ("bücher.example/x", "https://xn--bcher-kva.example/x", True),
        ("a.example/x", "http://a.example/x", False),
        ("a.example/x", "https://a.example/x/y", False),
        ("a.example/x", "https://www.a.example/x", False),
        ("a.example", "https://a.example/", False),
        ("notes.md", "https://notes.md/", False),
        ("ann@a.example/x", "https://a.example/x", False),
        ("ann@www.a.example", "https://www.a.example/", False),
        ("ftp://a.example/x", "https://a.example/x", False),
        ("https://b.example/?to=a.example/x", "https://a.example/x", False),
        ("./a.example/x", "https://a.example/x", False),
        ("127.0.0.1/x", "https://127.0.0.1/x", False),
        ("localhost/x", "https://localhost/x", False),
        ("xhttps://a.example/x", "https://a.example/x", False),
    ],
)
def test_addresses_are_equal_exactly_if_their_requests_are(words: str, asked: str, *, same: bool) -> None:
    assert runs(window(UserSaid(words, ANN)), asked) is same


@pytest.mark.parametrize(
    "said",
    [
        UserSaid("https://a.example/x", EVE),
        UserSaid("https://a.example/x", ANN, origin="trigger"),
        UserSaid("https://a.example/x", ANN, backfill=True),
        Steered("https://a.example/x", ANN),
        ToolFinished(CallId("c"), "bash", "https://a.example/x"),
    ],
)
def test_untrusted_words_grant_no_address(said: EventData) -> None:
    assert not runs(window(said), "https://a.example/x")


def test_search_results_and_page_links_are_granted_until_a_clear() -> None:
    events = (found("", "https://b.example/1"), found("a.example", "https://a.example/2"))
    for address in ("https://b.example/1", "https://a.example/2"):
        assert runs(window(*events), address)
        assert not runs(window(*events, Cleared()), address)


def test_granted_addresses_and_reads_are_bounded() -> None:
    many = window(found("", *(f"https://b.example/{number}" for number in range(GIVEN_MAX + 5))))
    assert len(many.words) == GIVEN_MAX
    links = window(found("a.example", *(f"https://a.example/{number}" for number in range(LINKS_MAX + 5))))
    assert len(links.links["a.example"]) == LINKS_MAX
    assert runs(links, "https://a.example/1", WebReads(0, {"a.example": FOLLOWED_MAX - 1}))
    assert not runs(links, "https://a.example/1", WebReads(0, {"a.example": FOLLOWED_MAX}))
    assert not runs(many, f"https://b.example/{GIVEN_MAX}", WebReads(READS_MAX))


HOSTS = st.sampled_from(["a.example", "www.a.example", "b.example", "evil.example"])
PATHS = st.sampled_from(["/", "/x", "/y?z=1", "/%7Ea", "/a_(b)", "/ü", "/..;/", "/x."])
ADDRESSES = st.builds(lambda host, path: f"https://{host}{path}", HOSTS, PATHS)
SPELLINGS = st.sampled_from(
    [
        lambda url: url,
        lambda url: f"{url}{SECRET}",
        lambda url: f"{url}?q={SECRET}",
        lambda url: f"{url}/{quote(SECRET)}",
        lambda url: f"{url}#{SECRET}",
        lambda url: url.replace("https://", f"https://{SECRET}."),
        lambda url: url.replace("https://", f"https://{SECRET}@"),
        lambda url: url.replace("example", "EXAMPLE"),
        lambda url: url.replace("/x", "/%78"),
        lambda url: f"{url}/" * 1,
    ]
)
SAID = st.one_of(ADDRESSES, ADDRESSES.map(lambda url: url.removeprefix("https://")))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("says"), st.lists(SAID, max_size=2)),
        st.tuples(st.just("search"), st.lists(ADDRESSES, max_size=4)),
        st.tuples(st.just("read"), ADDRESSES, SPELLINGS, st.lists(ADDRESSES, max_size=5)),
    ),
    min_size=1,
    max_size=60,
)


@seed(45)
@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_no_byte_of_a_secret_reaches_a_server_and_choices_are_bounded(steps: Iterable[tuple[object, ...]]) -> None:
    """Assumes a model that obeys every injection and writes addresses in any form, and pages that link to any
    address.
    """
    state, reads, offered, requests = GivenAddresses(), NO_READS, set[str](), list[str]()

    def take(data: EventData) -> None:
        nonlocal state
        state = state.after(Event(1, ThreadId("a:b:c"), TurnId("t"), datetime(2026, 1, 1, tzinfo=UTC), data))

    for kind, *rest in steps:
        if kind == "says":
            text = " ".join(map(str, rest[0]))  # pyrefly: ignore[bad-argument-type]
            take(UserSaid(text, ANN))
            offered |= set(addresses_in(text))
        elif kind == "search":
            results = tuple(map(canonical_address, rest[0]))  # pyrefly: ignore[bad-argument-type]
            take(found("", *results))
            offered |= set(results)
        else:
            url, spelled, links = rest
            wanted = spelled(url)  # pyrefly: ignore[not-callable]
            if not runs(state, wanted, reads):
                continue
            address = canonical_address(wanted)
            requests.append(address)
            reads = state.counted(address, reads)
            own = [one for one in map(canonical_address, links) if site_of(one) == site_of(address)]  # pyrefly: ignore[bad-argument-type]
            take(found(site_of(address), *own))
            offered |= set(own)
    assert set(requests) <= offered
    assert not [one for one in requests if SECRET in one]
    assert len(requests) <= READS_MAX
    assert all(count <= FOLLOWED_MAX for count in reads.followed.values())
