"""Web pages and URLs: any page is converted to text marked as untrusted, and all parsers read a checked URL the
same way.
"""

import random
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from ipaddress import ip_address

from shoal.kernel.errors import FetchError, ToolError
from shoal.net.addresses import Fetched, literal, parse_target, why_refused
from shoal.tools.builtin.web import brave_results, duckduckgo_results, page_text, untrusted
from tests.fuzz.inputs import Json, any_text, damaged, json_bytes
from tests.fuzz.target import Attempt

PAGE = (
    b"<!doctype html><html><head><meta charset=utf-8><title>T</title><style>x</style></head><body><h1>Head</h1>"
    b"<p>Text <a href='http://h/p'>link</a> <a href=\"javascript:alert(1)\">bad</a><table><tr><td>1<td>2</table>"
    b"<ul><li>a<ul><li>b</ul></ul><pre>code</pre><img src=x.png><script>alert(1)</script></p></body></html>"
)
KINDS = (
    "text/html",
    "text/html; charset={}",
    "text/plain; charset={}",
    "application/json",
    "image/png",
    "",
    "application/pdf",
)
CHARSETS = (
    "utf-8",
    "latin-1",
    "idna",
    "punycode",
    "undefined",
    "unicode_escape",
    "utf-16",
    "rot13",
    "hex",
    "utf-7",
    "x",
)
URLS = (
    "http://example.org/a?b=c#d",
    "https://[::1]:8/",
    "http://127.1/",
    "http://0x7f.1/",
    "http://2130706433/",
    "http://[::ffff:7f00:1]/",
    "http://user:pw@h/",
    "https://xn--bcher-kva.example/",
    "http://a.b.:80/",
    "http://[fe80::1%25eth0]/",
    "http://０.0.0.0/",
    "//h",
)
SEARCH: tuple[Json, ...] = ({"web": {"results": [{"title": "t", "url": "http://h/", "description": "d"}]}},)


@contextmanager
def target() -> Generator[Attempt]:
    yield attempt


def attempt(source: random.Random) -> None:
    _page(source)
    _address(source)
    duckduckgo_results(damaged(source, PAGE))
    with suppress(ToolError):
        brave_results(json_bytes(source, SEARCH))


def _page(source: random.Random) -> None:
    kind = source.choice(KINDS).format(source.choice(CHARSETS))
    page = Fetched("http://h/p", 200, (("content-type", kind),), damaged(source, PAGE))
    try:
        text = page_text(page, page.url)
    except ToolError:
        return
    marked = untrusted(page.url + any_text(source, 3), text + any_text(source))
    assert len(re.findall(r"<\s*/\s*untrusted", marked, re.IGNORECASE)) == 1, marked
    assert not re.search(r"\]\(\s*javascript:", text, re.IGNORECASE), text


def _address(source: random.Random) -> None:
    url = damaged(source, source.choice(URLS).encode()).decode(errors="replace")
    try:
        target = parse_target(url)
    except FetchError:
        return
    assert parse_target(target.url) == target, f"{url!r} reads as {target.url!r}, which parses differently"
    address = literal(target.host)
    if address is not None and not why_refused(target.host):
        assert ip_address(target.host).is_global, target
