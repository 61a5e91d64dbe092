"""Access to the HTTP API and the page: token, cookie, hosts, origins, and requests from other sites in a browser."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tests.e2e.http_stand import TOKEN, Served, served

from shoal.surfaces.http.options import WebOptions
from shoal.threads.access_tokens import NewToken

GUARDED = ("/api/threads", "/metrics", "/openapi.json", "/v1/models", "/api/nothing", "/nothing")
MESSAGES = "/api/threads/web:lobby:one/messages"
PROXY = "https://agents.example.org"


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    options = WebOptions(token=TOKEN, port=0, allowed_origins=(PROXY,))
    async with served(tmp_path, options) as stand:
        yield stand


@pytest.fixture
async def guessable(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path, WebOptions(token="short", port=0)) as stand:
        yield stand


async def enter(shoal: Served) -> httpx2.AsyncClient:
    """Return the client of a browser that opened the printed URL. It has the cookie and the page's key."""
    answer = await shoal.stranger.get("/", params={"token": TOKEN, "thread": "web:lobby:one"})
    assert answer.status_code == 303
    address, _, key = answer.headers["location"].partition("&key=")
    assert address == "/?thread=web%3Alobby%3Aone"
    shoal.stranger.headers["X-Shoal"] = key
    return shoal.stranger


@pytest.mark.parametrize("path", GUARDED)
async def test_without_a_credential_nothing_is_revealed(shoal: Served, path: str) -> None:
    answer = await shoal.stranger.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
)
async def test_a_wrong_token_is_rejected(shoal: Served, value: str) -> None:
    answer = await shoal.stranger.get("/api/threads", headers={"Authorization": value})
    assert answer.status_code == 401


async def test_a_token_in_the_query_does_not_authorize_calls(shoal: Served) -> None:
    assert (await shoal.stranger.get("/api/threads", params={"token": TOKEN})).status_code == 401


async def test_the_printed_address_sets_a_cookie_that_does_not_contain_the_token(shoal: Served) -> None:
    client = await enter(shoal)
    assert (await client.get("/api/threads")).status_code == 200
    (cookie,) = client.cookies.jar
    assert cookie.name == f"shoal_{shoal.port}"
    assert TOKEN not in (cookie.value or "")
    cookie_header = (await client.get("/", params={"token": TOKEN})).headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(re.split("; *", cookie_header))


async def test_a_wrong_token_in_the_address_sets_no_cookie(shoal: Served) -> None:
    answer = await shoal.stranger.get("/", params={"token": "wrong"})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "wrong" in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize("value", ["", "x", "99999999999.00", "9999999999." + "0" * 64, "1.é", "²." + "0" * 64])
async def test_a_forged_cookie_is_rejected(shoal: Served, value: str) -> None:
    name = f"shoal_{shoal.port}"
    cookie = {b"Cookie": f"{name}={value}".encode()}
    answer = await shoal.stranger.get("/api/threads", headers=cookie)
    assert answer.status_code == 401


async def test_a_cookie_signed_with_another_token_is_rejected(shoal: Served, tmp_path: Path) -> None:
    async with served(tmp_path / "other", WebOptions(token=TOKEN + "2", port=0)) as other:
        answer = await other.stranger.get("/", params={"token": TOKEN + "2"})
        value = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
    cookie = f"shoal_{shoal.port}={value}"
    assert (await shoal.stranger.get("/api/threads", headers={"Cookie": cookie})).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "{own}", "Content-Type": "application/json"}, 202),
        ({"Origin": PROXY, "Content-Type": "application/json"}, 202),
        ({"Content-Type": "application/json"}, 403),
        ({"Origin": "http://localhost:3000", "Content-Type": "application/json"}, 403),
        ({"Origin": "null", "Content-Type": "application/json"}, 403),
        ({"Origin": "https://evil.example", "Content-Type": "application/json"}, 403),
        ({"Origin": "{own}", "X-Shoal": "1"}, 401),
        ({"Origin": "{own}", "X-Shoal": ""}, 401),
        ({"Origin": "{own}", "X-Shoal": "0" * 64}, 401),
        ({"Origin": "{own}", "Content-Type": "application/json", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "{own}", "Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "{own}", "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}, 202),
    ],
)
async def test_a_change_authorized_by_cookie_must_come_from_the_page(
    shoal: Served, headers: dict[str, str], status: int
) -> None:
    client = await enter(shoal)
    sent = {name: value.replace("{own}", shoal.address) for name, value in headers.items()}
    assert (await client.post(MESSAGES, content=b'{"text": "hi"}', headers=sent)).status_code == status


async def test_the_page_may_call_without_a_body(shoal: Served) -> None:
    client = await enter(shoal)
    abort = "/api/threads/web:lobby:one/abort"
    assert (await client.post(abort, headers={"Origin": shoal.address})).status_code == 202
    assert (await client.post(abort, headers={"Origin": shoal.address, "X-Shoal": "1"})).status_code == 401


async def test_another_site_cannot_read_with_the_cookie(shoal: Served) -> None:
    client = await enter(shoal)
    for site in ("cross-site", "same-site"):
        assert (await client.get("/api/threads", headers={"Sec-Fetch-Site": site})).status_code == 403


async def test_messages_from_the_page_have_a_person_as_their_origin(shoal: Served) -> None:
    client = await enter(shoal)
    await client.post(MESSAGES, json={"text": "hi"}, headers={"Origin": shoal.address})
    await shoal.client.post(MESSAGES, json={"text": "hi"})
    origins = [getattr(message, "origin", "") for message in shoal.orchestrator.received]
    assert origins == ["person", "api"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8420", 200),
        ("localhost:1", 200),
        ("LOCALHOST", 200),
        ("[::1]:8420", 200),
        ("127.9.9.9", 200),
        ("agents.example.org", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example", 400),
        ("192.168.1.7", 400),
        ("[::1].evil.example", 400),
        ("[::1]evil", 400),
        ("[::1]:80.evil.example", 400),
        ("localhost:evil.example", 400),
        ("127.0.0.1:80:80", 400),
        ("[127.0.0.1", 400),
        ("localhost@evil.example", 400),
        ("evil.example@localhost", 400),
        ("", 400),
    ],
)
async def test_only_known_hosts_are_served(shoal: Served, host: str, status: int) -> None:
    assert (await shoal.client.get("/api/threads", headers={"Host": host})).status_code == status
    assert (await shoal.stranger.get("/healthz", headers={"Host": host})).status_code == 200


async def test_the_page_is_not_served_under_a_foreign_name(shoal: Served) -> None:
    answer = await shoal.stranger.get("/", params={"token": TOKEN}, headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert "set-cookie" not in answer.headers


async def test_a_server_on_all_addresses_is_reached_by_address_only(tmp_path: Path) -> None:
    async with served(tmp_path, WebOptions(token=TOKEN, host="0.0.0.0", port=0)) as stand:
        for host, status in (("192.168.1.7:8420", 200), ("evil.example", 400)):
            assert (await stand.client.get("/api/threads", headers={"Host": host})).status_code == status


async def test_a_foreign_origin_is_rejected_even_with_the_token(shoal: Served) -> None:
    answer = await shoal.client.get("/api/threads", headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error"]) == (403, "foreign_origin")
    assert "access-control-allow-origin" not in answer.headers


async def test_a_configured_origin_may_call_with_the_token(shoal: Served) -> None:
    asked = {"Origin": PROXY, "Access-Control-Request-Method": "POST"}
    preflight = await shoal.stranger.options("/api/threads", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == PROXY
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    answer = await shoal.client.get("/api/threads", headers={"Origin": PROXY})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PROXY)
    assert "access-control-allow-credentials" not in answer.headers
    assert (await shoal.stranger.get("/api/threads", headers={"Origin": PROXY})).status_code == 401


async def test_token_guessing_is_slowed_down(guessable: Served) -> None:
    wrong = {"Authorization": "Bearer guess"}
    statuses = [(await guessable.stranger.get("/api/threads", headers=wrong)).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    right = await guessable.client.get("/api/threads")
    assert (right.status_code, right.json()["error"]) == (429, "too_many_failures")
    assert int(right.headers["retry-after"]) <= 61


async def test_guessing_does_not_lock_out_valid_tokens(shoal: Served) -> None:
    wrong = {"Authorization": "Bearer guess"}
    statuses = [(await shoal.stranger.get("/api/threads", headers=wrong)).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert (await shoal.client.get("/api/threads")).status_code == 200


async def test_every_response_has_the_security_headers(shoal: Served) -> None:
    for path in ("/healthz", "/api/threads", "/api/nothing", "/"):
        headers = (await shoal.client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        # with `no-referrer`, the sign-in form would not send its origin
        assert headers["referrer-policy"] == ("same-origin" if path == "/" else "no-referrer")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT", headers["date"])
        assert "server" not in headers
    assert (await shoal.client.get("/api/threads")).headers["cache-control"] == "no-store"


async def test_without_a_cookie_the_page_asks_for_the_token(shoal: Served) -> None:
    answer = await shoal.stranger.get("/")
    assert answer.status_code == 401
    assert 'name="token"' in answer.text
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


async def test_the_page_has_a_strict_content_security_policy(shoal: Served) -> None:
    client = await enter(shoal)
    answer = await client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_page_files_are_revalidated_or_cached(shoal: Served) -> None:
    name = "/console/vendor/marked.js"
    first = await shoal.stranger.get(name)
    assert (first.status_code, first.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    again = await shoal.stranger.get(name, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


async def test_page_assets_are_cached_until_the_page_changes(shoal: Served) -> None:
    page = (await (await enter(shoal)).get("/")).text
    match = re.search(r'src="(/console/(@\w+)/main\.js)"', page)
    assert match is not None
    assert "immutable" in (await shoal.stranger.get(match[1])).headers["cache-control"]
    other = await shoal.stranger.get(match[1].replace(match[2], "@0"))
    assert (other.status_code, other.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize(
    "path",
    [
        "/console/../__init__.py",
        "/console/%2e%2e/__init__.py",
        "/console/..%2f__init__.py",
        "/console/none.js",
        "/console/",
    ],
)
async def test_only_the_pages_own_files_are_served(shoal: Served, path: str) -> None:
    request = httpx2.Request("GET", shoal.address)
    request.url = request.url.copy_with(raw_path=path.encode())
    request.headers["Authorization"] = f"Bearer {TOKEN}"
    assert (await shoal.stranger.send(request)).status_code == 404


# ---- the cookie without the key, as any other server on this host receives it ----

HOSTILE: tuple[dict[str, str], ...] = (
    {},
    {"X-Shoal": "1"},
    {"X-Shoal": "{cookie}"},
    {"X-Shoal": "{signature}"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
    {"Authorization": "Bearer {signature}"},
    {"X-Forwarded-Proto": "https"},
    {"X-HTTP-Method-Override": "POST"},
)
CALLS = (
    ("GET", "/api/me", ""),
    ("GET", "/api/threads", ""),
    ("GET", "/api/tokens", ""),
    ("GET", "/api/threads/web:lobby:one/events", ""),
    ("GET", "/api/threads/web:lobby:one/files/attachments/a.txt", ""),
    ("GET", "/api/threads/web:lobby:one/export?format=html", ""),
    ("GET", "/api/threads/web:lobby:one/picture?path=a.png", ""),
    ("GET", "/api/threads/web:lobby:one/artifacts/0", ""),
    ("GET", "/api/threads/web:lobby:one/files/attachments/a.txt?ticket=9999999999.{signature}", ""),
    ("GET", "/openapi.json", ""),
    ("GET", "/v1/models", ""),
    ("POST", "/api/tokens", '{"name": "mine", "scope": "admin"}'),
    ("POST", MESSAGES, '{"text": "hi"}'),
    ("POST", "/v1/chat/completions", '{"model": "shoal", "messages": []}'),
    ("PUT", "/api/push", "{}"),
    ("POST", "/api/approvals/one", '{"decision": "allow"}'),
)


@pytest.mark.parametrize("headers", HOSTILE)
async def test_the_cookie_alone_opens_nothing(shoal: Served, headers: dict[str, str]) -> None:
    client = await enter(shoal)
    name, value = next((cookie.name, cookie.value or "") for cookie in client.cookies.jar)
    words = {"{cookie}": value, "{signature}": value.split(".")[1]}
    del client.headers["X-Shoal"]

    def filled(text: str) -> str:
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        return text

    sent = {
        "Origin": shoal.address,
        "Cookie": f"{name}={value}",
        **{key: filled(text) for key, text in headers.items()},
    }
    encoded = [(key.encode(), text.encode()) for key, text in sent.items()]
    for method, path, body in CALLS:
        answer = await client.request(method, filled(path), content=body.encode(), headers=encoded)
        assert answer.status_code in (401, 403, 429), (method, path)
    page = await client.get("/", headers=encoded)
    key = (await enter(shoal)).headers["X-Shoal"]
    assert key not in page.text
    assert key not in str(page.headers)


async def test_a_ticket_only_grants_access_to_files(shoal: Served) -> None:
    client = await enter(shoal)
    ticket = (await client.get("/api/me")).json()["ticket"]
    del client.headers["X-Shoal"]
    path = "/api/threads/web:lobby:one/files/attachments/a.txt"
    assert (await client.get(path, params={"ticket": ticket})).status_code == 404
    export = "/api/threads/web:lobby:one/export?format=html"
    assert (await client.get(f"{export}&ticket={ticket}")).status_code == 404
    for elsewhere in ("/api/threads", "/api/me", "/api/tokens", "/api/threads/web:lobby:one/files"):
        assert (await client.get(elsewhere, params={"ticket": ticket})).status_code == 401, elsewhere
    expires, _, signature = ticket.partition(".")
    for wrong in (f"{int(expires) + 1}.{signature}", f"{expires}.", signature, ".", f"{'9' * 5000}.{signature}", "é.é"):
        assert (await client.get(path, params={"ticket": wrong})).status_code == 401, wrong
    client.cookies.clear()
    assert (await client.get(path, params={"ticket": ticket})).status_code == 401
    assert (await shoal.client.get("/api/me")).json()["ticket"] == ""


async def test_a_link_from_another_site_asks_before_signing_in(shoal: Served) -> None:
    for site in ("cross-site", "same-site"):
        asked = await shoal.stranger.get("/", params={"token": TOKEN, "a": '"><b'}, headers={"Sec-Fetch-Site": site})
        assert (asked.status_code, "set-cookie" in asked.headers) == (200, False)
        assert "Sign in as the owner?" in asked.text
        assert "<b" not in asked.text.replace("<body", "").replace("<button", "")
    entered = await shoal.stranger.post("/?a=1", data={"token": TOKEN}, headers={"Origin": shoal.address})
    assert (entered.status_code, entered.headers["location"][:10]) == (303, "/?a=1&key=")


async def test_a_link_with_another_persons_token_asks_before_replacing_a_session(shoal: Served) -> None:
    client = await enter(shoal)
    _, secret = await shoal.tokens.create(NewToken("ben", "chat"), "web:owner")
    asked = await client.get("/", params={"token": secret})
    assert (asked.status_code, "set-cookie" in asked.headers) == (200, False)
    assert "Sign in as ben?" in asked.text
    assert "You are signed in as the owner." in asked.text
    assert (await client.get("/api/me")).json()["person"] == "web:owner"
    assert (await client.get("/", params={"token": TOKEN})).status_code == 303


async def test_behind_a_proxy_with_tls_the_cookie_is_secure(shoal: Served) -> None:
    encrypted = {"X-Forwarded-Proto": "https", "Host": "agents.example.org"}
    cookie = (await shoal.stranger.get("/", params={"token": TOKEN}, headers=encrypted)).headers["set-cookie"]
    assert cookie.startswith("__Host-shoal=")
    assert "secure" in cookie.lower().split("; ")
    assert "path=/" in cookie.lower()
    plain = (await shoal.stranger.get("/", params={"token": TOKEN})).headers["set-cookie"]
    assert "secure" not in plain.lower().split("; ")


async def test_signing_out_clears_the_browser(shoal: Served) -> None:
    client = await enter(shoal)
    assert (await client.request("DELETE", "/", headers={"Origin": "https://evil.example"})).status_code == 403
    assert (await client.request("DELETE", "/", headers={"Origin": shoal.address})).status_code == 204
    assert not list(client.cookies.jar)
    assert (await client.get("/")).status_code == 401
