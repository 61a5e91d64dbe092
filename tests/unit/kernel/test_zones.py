"""Time zones by name, and the machine's own zone."""

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import TZPATH

import pytest

from shoal.kernel.errors import InvalidInput
from shoal.kernel.zones import local_time, local_zone, zone_named


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        (" EUROPE/BERLIN ", "Europe/Berlin"),
        ("berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("CET", "CET"),
        ("utc", "UTC"),
        ("Z", "UTC"),
        ("UTC+2", "Etc/GMT-2"),
        ("gmt-05:00", "Etc/GMT+5"),
        ("US/Pacific", "US/Pacific"),
    ],
)
def test_zones_are_found_in_usual_spellings(name: str, key: str) -> None:
    assert zone_named(name).key == key


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("Los Angles", "America/Los_Angeles"),
        ("CEST", "Europe/Berlin"),
        ("PST", "America/Los_Angeles"),
        ("", "Use an IANA name"),
        ("../../etc/passwd", "not known"),
        ("posix/Europe/Berlin", "Europe/Berlin"),
        ("localtime", "not known"),
        ("Europe", "Europe/"),
        ("UTC+99", "not known"),
        ("\0", "not known"),
        ("x" * 100_000, "not known"),
    ],
)
def test_unknown_zones_are_refused_with_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(InvalidInput, match=near) as caught:
        zone_named(name)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("variable", "zone"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        (":Europe/Berlin", "Europe/Berlin"),
        ("/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
        (":/usr/share/zoneinfo/posix/Asia/Tokyo", "Asia/Tokyo"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "UTC"),
        ("Nowhere/Land", "UTC"),
        ("", "UTC"),
    ],
)
def test_the_variable_has_priority(variable: str, zone: str, tmp_path: Path) -> None:
    assert local_zone({"TZ": variable}, tmp_path) == zone


def test_the_zone_comes_from_the_link_then_the_content_then_the_name(tmp_path: Path) -> None:
    etc, zones = tmp_path / "etc", tmp_path / "usr" / "share" / "zoneinfo" / "Europe"
    etc.mkdir()
    zones.mkdir(parents=True)
    (etc / "timezone").write_text("Asia/Tokyo\n")
    assert local_zone({}, tmp_path) == "Asia/Tokyo"
    (zones / "Berlin").touch()
    (etc / "localtime").symlink_to(zones / "Berlin")
    assert local_zone({}, tmp_path) == "Europe/Berlin"
    (etc / "localtime").unlink()
    copied = next((path for folder in TZPATH if (path := Path(folder, "America/New_York")).is_file()), None)
    if copied is not None:  # as in a container whose /etc/timezone is out of date
        (etc / "localtime").write_bytes(copied.read_bytes())
        assert zone_named(local_zone({}, tmp_path)).utcoffset(datetime(2026, 7, 1)) == zone_named(  # noqa: DTZ001
            "America/New_York"
        ).utcoffset(datetime(2026, 7, 1))  # noqa: DTZ001
    (etc / "localtime").write_bytes(b"nonsense")
    assert local_zone({}, tmp_path) == "Asia/Tokyo"


def test_a_time_is_shown_with_its_zone() -> None:
    at = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert local_time(at) == "2026-07-01 12:00 UTC"
    assert local_time(at.astimezone(zone_named("Europe/Berlin"))) == "2026-07-01 14:00 Europe/Berlin (UTC+02:00)"
