"""The allow-list proxy: listed hosts are reachable, all others are not."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.sandbox import proxy
from shoal.sandbox.proxy import WEB_PORTS, AllowedHosts, ProxyRefusal, PublicHosts, parse_request


@pytest.mark.parametrize(
    ("entry", "allowed", "refused"),
    [
        (
            "example.org",
            ["example.org:443", "EXAMPLE.org.:80"],
            ["example.org:22", "a.example.org:443", "xexample.org:443"],
        ),
        ("*.example.org", ["a.example.org:443", "a.b.example.org:80"], ["example.org:443", "badexample.org:443"]),
        ("example.org:8080", ["example.org:8080"], ["example.org:443"]),
        ("192.0.2.7", ["192.0.2.7:80"], ["192.0.2.70:80", "192.0.2.7:81"]),
        ("[2001:db8::1]:8080", ["2001:db8::1:8080"], ["2001:db8::1:80"]),
        ("2001:db8::1", ["2001:db8::1:443"], ["2001:db8::2:443"]),
    ],
)
def test_the_list_decides_which_hosts_are_allowed(entry: str, allowed: list[str], refused: list[str]) -> None:
    hosts = AllowedHosts((entry,))

    def allows(name: str) -> bool:
        host, _, port = name.rpartition(":")
        return hosts.allows(host, int(port))

    assert [name for name in allowed if not allows(name)] == []
    assert [name for name in refused if allows(name)] == []


@given(st.text(max_size=40), st.integers(0, 65535))
def test_an_empty_list_allows_nothing(host: str, port: int) -> None:
    assert not AllowedHosts(()).allows(host, port)


def test_a_tunnel_and_a_plain_request_are_understood() -> None:
    tunnel = parse_request(b"CONNECT example.org:443 HTTP/1.1\r\nHost: other\r\n\r\n")
    assert tunnel == ("example.org", 443, b"")
    plain = parse_request(
        b"GET http://user@example.org:81/a?b=c HTTP/1.1\r\nHost: other\r\nAccept: */*\r\n"
        b"Proxy-Authorization: secret\r\nConnection: keep-alive\r\n\r\n"
    )
    head = b"GET /a?b=c HTTP/1.1\r\nHost: example.org:81\r\nConnection: close\r\nAccept: */*\r\n\r\n"
    assert plain == ("example.org", 81, head)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        b"GET https://example.org/ HTTP/1.1\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\n\r\n",
        b"CONNECT example.org HTTP/1.1\r\n\r\n",
        b"CONNECT example.org:99999 HTTP/1.1\r\n\r\n",
        b"CONNECT :443 HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET http://[::1/ HTTP/1.1\r\n\r\n",
    ],
)
def test_anything_else_is_refused(head: bytes) -> None:
    with pytest.raises(ProxyRefusal, match="400"):
        parse_request(head)


@given(st.binary(max_size=200))
def test_any_bytes_are_handled(head: bytes) -> None:
    try:
        target = parse_request(head)
    except ProxyRefusal:
        return
    assert target.host


@pytest.mark.parametrize(
    ("host", "address", "may"),
    [
        ("example.org", "93.184.216.34", True),
        ("example.org", "127.0.0.1", False),
        ("example.org", "169.254.169.254", False),
        ("example.org", "10.0.0.1", False),
        ("example.org", "::1", False),
        ("example.org", "::ffff:127.0.0.1", False),
        ("example.org", "fe80::1%eth0", False),
        ("example.org", "224.0.0.1", False),
        ("example.org", "0.0.0.0", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.1", "127.0.0.1", False),
    ],
)
def test_a_name_resolves_only_to_public_addresses(host: str, address: str, may: bool) -> None:
    assert AllowedHosts((host,)).may_open(host, address) is may


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *(
            "169.254.169.254",
            "169.254.170.2",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.251",
        ),
        *("240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "fd00::1", "fd00:ec2::254", "fc00::1", "fe80::1%lo"),
        *("fec0::1", "ff02::1", "100::1", "2001:db8::1", "2001::1", "3fff::1", "5f00::1"),
    ],
)
def test_no_host_resolves_to_a_private_address(address: str) -> None:
    assert not PublicHosts(WEB_PORTS).may_open("example.org", address)
    assert not PublicHosts(WEB_PORTS).may_open(address, address)


@pytest.mark.parametrize(("port", "allows"), [(80, True), (443, True), (22, False), (5432, False), (0, False)])
def test_public_hosts_are_reached_on_configured_ports(port: int, allows: bool) -> None:
    assert PublicHosts(WEB_PORTS).allows("example.org", port) is allows


async def test_a_client_that_still_sends_a_body_sees_the_refusal() -> None:
    async with proxy.HostProxy(("example.org",)) as network:
        reader, writer = await asyncio.open_unix_connection(f"{network.folder}/socket")
        writer.write(b"POST http://other.org/ HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n")
        for _ in range(30):
            writer.write(b"x" * 100_000)
            await writer.drain()
        assert b"403 other.org:80 is not among the hosts" in await reader.read()
        writer.close()
