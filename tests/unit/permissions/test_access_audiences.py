"""The audience of a channel, which limits what a turn may see."""

import pytest
from msgspec import structs

from shoal.kernel.ids import make_thread_id
from shoal.kernel.messages import Author
from shoal.kernel.permissions import Asker, Audience
from shoal.permissions.access import AccessRules, Links, People, Person

OWNER_EVERYWHERE = Person(("telegram:4711", "slack:U1"))
LINKS = Links(
    People([OWNER_EVERYWHERE]),
    {
        "telegram": AccessRules(("4711",), ("*",)),
        "slack": AccessRules((), ("U1", "U2")),
        "teams": AccessRules((), ("*",), trust_everybody=True),
        "discord": AccessRules((), ("*",), channels=("harbour",)),
        "web": AccessRules(("owner",)),
    },
)
ALL = Audience(everywhere=True, person="owner")
SHARED, GUESTS = Audience(), Audience(guest=True)


@pytest.mark.parametrize(
    ("platform", "user", "kind", "trusted", "expected"),
    [
        ("telegram", "4711", "direct", True, ALL),
        ("slack", "U1", "direct", True, ALL),
        ("web", "owner", "direct", True, ALL),
        ("telegram", "4711", "group", True, GUESTS),
        ("slack", "U1", "group", True, SHARED),
        ("slack", "U2", "direct", True, Audience(person="slack:U2")),
        ("slack", "U2", "group", True, SHARED),
        ("telegram", "9", "direct", False, Audience(person="telegram:9", guest=True)),
        ("telegram", "9", "direct", True, Audience(person="telegram:9")),
        ("telegram", "9", "group", False, GUESTS),
        ("teams", "9", "group", True, SHARED),
        ("nowhere", "9", "group", False, SHARED),
    ],
)
def test_an_audience_depends_on_the_asker_and_the_channel(
    platform: str, user: str, kind: str, trusted: bool, expected: Audience
) -> None:
    thread = make_thread_id(platform, "harbour", "1")
    asker = Asker(
        trust="trusted", user=user, platform=platform, channel="harbour", kind="direct" if kind == "direct" else "group"
    )
    found = LINKS.audience(asker, Author(user, trusted=trusted), thread)
    assert structs.replace(found, speaker="") == expected


@pytest.mark.parametrize(("user", "speaker"), [("U1", "owner"), ("U2", "slack:U2"), ("", "")])
def test_a_message_in_a_shared_channel_has_a_speaker_and_no_personal_audience(user: str, speaker: str) -> None:
    asker = Asker(trust="trusted", user=user, platform="slack", channel="harbour", kind="group")
    found = LINKS.audience(asker, Author(user, trusted=True), make_thread_id("slack", "harbour", "1"))
    assert (found.person, found.speaker) == ("", speaker)


def test_a_person_is_no_guest_of_a_channel_closed_to_untrusted_people() -> None:
    asker = Asker(trust="untrusted", user="9", platform="discord", kind="group")
    author = Author("9", trusted=True)
    found = [LINKS.audience(asker, author, make_thread_id("discord", name, "1")) for name in ("harbour", "bridge")]
    assert [one.guest for one in found] == [True, False]


def test_an_audience_covers_its_own_channel_or_everything() -> None:
    thread = make_thread_id("telegram", "-1001", "7")
    assert Audience().within(thread) == "telegram:-1001:"
    assert ALL.within(thread) == ""
