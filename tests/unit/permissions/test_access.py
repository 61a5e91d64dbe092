"""Linked identities, and membership by user or by role."""

import msgspec
import pytest

from shoal.kernel.permissions import Asker
from shoal.permissions.access import NOBODY, People, Person, is_among

ADA = Person(("telegram:1", "discord:2"), roles=("lead",))


def asker(user: str, platform: str = "telegram", *roles: str) -> Asker:
    return Asker(trust="trusted", user=user, name=user, roles=roles, platform=platform)


@pytest.mark.parametrize(
    ("by", "people", "among"),
    [
        (asker("1"), ("telegram:1",), True),
        (asker("1"), ("discord:1", "telegram:1"), True),
        (asker("1"), ("discord:1",), False),
        (asker("1"), (), False),
        (asker("1", "telegram", "lead"), ("role:lead",), True),
        (asker("1", "telegram", "lead"), ("telegram:role:lead",), True),
        (asker("1", "telegram", "lead"), ("discord:role:lead", "role:boss"), False),
        (asker("", "telegram", "lead"), ("role:lead", "telegram:"), False),
        (asker("1", "", "lead"), ("role:lead", ":1"), False),
    ],
)
def test_people_are_matched_by_user_or_role(by: Asker, people: tuple[str, ...], among: bool) -> None:
    assert is_among(by, people) is among


def test_a_linked_person_has_the_names_and_roles_of_all_identities() -> None:
    people = People([ADA, Person(("telegram:1", "slack:9"))])
    assert people.find("discord:2") is ADA
    assert people.find("telegram:1") is ADA
    assert people.find("telegram:3") is NOBODY
    known = people.asker(asker("1", "telegram", "member"))
    assert (known.known_as, known.roles) == (ADA.identities, ("member", "lead"))


def test_an_unlinked_person_is_unchanged() -> None:
    by = asker("3")
    assert People([ADA]).asker(by) is by


def test_only_a_trusted_identity_of_the_owner_is_the_owner() -> None:
    people = People([ADA], owners=("discord:2",))
    assert people.asker(asker("1")).trust == "owner"
    assert people.asker(asker("3")).trust == "trusted"
    assert people.asker(msgspec.structs.replace(asker("1"), trust="untrusted")).trust == "untrusted"
