"""Addresses that a model may open: every form of a private address is rejected."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.errors import FetchError
from shoal.net.addresses import parse_target, why_refused

PRIVATE = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
        "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
    )
)  # fmt: skip
private_addresses = st.sampled_from(PRIVATE).flatmap(
    lambda net: st.integers(int(net.network_address), int(net.broadcast_address)).map(IPv4Address)
)


@given(private_addresses)
def test_private_addresses_are_refused(address: IPv4Address) -> None:
    assert why_refused(str(address))


def test_the_public_address_of_a_clouds_internal_services_is_refused() -> None:
    assert why_refused("168.63.129.16")  # Azure's WireServer, which returns the keys of VM extensions
    assert not why_refused("168.63.129.17")


@given(st.ip_addresses(v=4))
def test_every_ipv6_address_that_carries_an_ipv4_address_is_refused(address: IPv4Address) -> None:
    number = int(address)
    for carried in (
        (0xFFFF << 32) | number,
        number,
        (0x2002 << 112) | (number << 80),
        (0x64FF9B << 96) | number,
        (0x64FF9B0001 << 80) | number,
        (0x20010000 << 96) | (number << 64) | (number ^ 0xFFFFFFFF),
        (0x2606 << 112) | (0x00005EFE << 32) | number,
        (0x2606 << 112) | (0x02005EFE << 32) | number,
    ):
        assert why_refused(str(IPv6Address(carried)))


@given(st.ip_addresses())
def test_only_global_addresses_are_allowed(address: IPv4Address | IPv6Address) -> None:
    if not why_refused(str(address)):
        assert address.is_global
        assert not any((address.is_multicast, address.is_loopback, address.is_link_local, address.is_private))


@pytest.mark.parametrize(
    "address",
    ["::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "fec0::1", "2001:db8::1", "100::1", "x", ""],
)
def test_special_addresses_are_refused(address: str) -> None:
    assert why_refused(address)


def test_ordinary_addresses_are_allowed() -> None:
    for address in ("8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e"):
        assert why_refused(address) == ""


def test_only_listed_networks_are_allowed() -> None:
    allowed = (ip_network("127.0.0.1/32"), ip_network("fd00::/8"))
    assert why_refused("127.0.0.1", allowed) == ""
    assert why_refused("fd12::1", allowed) == ""
    assert why_refused("127.0.0.2", allowed)
    assert why_refused("::ffff:127.0.0.1", allowed)


def spellings(address: IPv4Address) -> list[str]:
    number = int(address)
    a, b, c, d = address.packed
    return [
        str(number), hex(number), f"0{number:o}", f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}", f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"{a}.{(b << 16) | (c << 8) | d}", f"{a}.{b}.{(c << 8) | d}", f"{address}.", f"0{address}", f"{number}.",
    ]  # fmt: skip


@given(st.ip_addresses(v=4), st.data())
def test_disguised_numbers_are_never_targets(address: IPv4Address, data: st.DataObject) -> None:
    spelling = data.draw(st.sampled_from(spellings(address)))
    wide = data.draw(st.booleans())
    if wide:
        spelling = "".join(chr(ord(char) + 0xFEE0) if char.isdigit() else char for char in spelling)
    try:
        target = parse_target(f"http://{spelling}/")
    except FetchError:
        return
    assert target.host == str(address)
    assert "." in spelling.rstrip(".")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/", "file:///etc/passwd", "javascript:alert(1)", "//example.org/", "example.org", "",
        "http://user@example.org/", "http://user:pass@example.org/", "http://@example.org/", "http:///x", "http://",
        "http://example.org./", "http://exa mple.org/", "http://example.org\\@evil.example/", "http://example.org:0/",
        "http://example.org:99999/", "http://example.org:/", "http://example.org:x/", "http://[fe80::1%25eth0]/",
        "http://[127.0.0.1]/", "http://[::1", "http://exa%6dple.org/", "http://a..b/", "http://-a.example/",
        "http://example.org/\r\nHost: x", "http://example.org/\x00", "http://127.1/", "http://0x7f.1/", "http://1e3.08/",
        "https://" + "a" * 64 + ".example/", "http://example.org/" + "x" * 2050,
        "http://example.org/\ud800", "http://example.org/?\udfff", "http://\ud800/",
    ],
)  # fmt: skip
def test_anything_but_a_plain_web_address_is_refused(url: str) -> None:
    with pytest.raises(FetchError):
        parse_target(url)


@pytest.mark.parametrize(
    ("url", "host", "authority", "path"),
    [
        ("http://Example.ORG", "example.org", "example.org", "/"),
        ("https://example.org:443/a?b=c d#x".replace(" ", "%20"), "example.org", "example.org", "/a?b=c%20d"),
        ("http://example.org:8080/ä", "example.org", "example.org:8080", "/%C3%A4"),
        ("http://bücher.example/", "xn--bcher-kva.example", "xn--bcher-kva.example", "/"),
        ("http://[2606:4700::1111]:81/", "2606:4700::1111", "[2606:4700::1111]:81", "/"),
        ("http://127.0.0.1/", "127.0.0.1", "127.0.0.1", "/"),
    ],
)
def test_a_web_address_is_parsed(url: str, host: str, authority: str, path: str) -> None:
    target = parse_target(url)
    assert (target.host, target.authority, target.path) == (host, authority, path)
    assert parse_target(target.url) == target


@given(st.text(max_size=60))
def test_any_text_is_a_target_or_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"http://example.org/{text}"):
        try:
            target = parse_target(url)
        except FetchError:
            continue
        assert target.url.isascii()
        assert parse_target(target.url) == target
