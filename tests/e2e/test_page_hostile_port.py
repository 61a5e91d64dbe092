"""The page in Chromium next to a hostile server on another port of the same host, such as an agent's development
server.
"""

import asyncio
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import Browser, expect
from tests.connections import listening
from tests.e2e.http_stand import TOKEN, served
from tests.e2e.page_kit import opened, violations

from shoal.net.connections import default_tls
from shoal.surfaces.http.options import WebOptions
from shoal.threads.access_tokens import NewToken

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]


class HostileServer:
    """A server that records request heads and responds with an empty page."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        body = b"<!doctype html><title>dev server</title>"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)


OPTIONS = WebOptions(token=TOKEN, port=0)


async def test_the_cookie_is_useless_to_another_port(browser: Browser, tmp_path: Path) -> None:
    hostile = HostileServer()
    async with (
        served(tmp_path, OPTIONS) as shoal,
        listening(hostile.answer) as hostile.port,
        opened(browser, f"{shoal.address}/?token={TOKEN}", place="tokens") as page,
    ):
        await page.wait_for_function("localStorage.getItem('shoal-key')")
        assert "key=" not in page.url
        other = await page.context.new_page()
        await other.goto(f"http://127.0.0.1:{hostile.port}/")
        head = next(head for head in hostile.heads if head.startswith("GET / "))
        cookie = next(line for line in head.split("\r\n") if line.lower().startswith("cookie: ")).partition(": ")[2]
        assert cookie.startswith("shoal_")  # a browser sends cookies to all ports of a host
        assert await other.evaluate("localStorage.length") == 0
        assert (
            await page.evaluate(
                "fetch('/api/me', {headers: {'X-Shoal': localStorage.getItem('shoal-key')}}).then(a => a.status)"
            )
            == 200
        )
        forged = {"Cookie": cookie, "Origin": shoal.address, "Sec-Fetch-Site": "same-origin", "X-Shoal": "1"}
        async with httpx2.AsyncClient(verify=default_tls(), base_url=shoal.address, headers=forged) as thief:
            answer = await thief.post("/api/tokens", json={"name": "thief", "scope": "admin"})
            assert answer.status_code == 401
            assert (await thief.get("/api/threads")).status_code == 401
            assert (await thief.get("/")).status_code == 200  # the page's files, which are public
        assert await shoal.tokens.named("thief") is None
        assert await violations(page) == []


async def test_a_page_without_its_key_leads_to_signing_in(browser: Browser, tmp_path: Path) -> None:
    async with (
        served(tmp_path, OPTIONS) as shoal,
        opened(browser, f"{shoal.address}/?token={TOKEN}", place="new") as page,
    ):
        await expect(page.get_by_role("link", name="New conversation").first).to_be_visible()
        await page.evaluate("localStorage.removeItem('shoal-key')")
        await page.goto(f"{shoal.address}/?key=made-up")
        await expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()
        await page.get_by_role("link", name="Sign in").click()
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("link", name="New conversation").first).to_be_visible()
        await page.goto(f"{shoal.address}/?key=made-up")  # a link cannot replace the key
        await expect(page.get_by_role("link", name="New conversation").first).to_be_visible()


async def test_a_link_with_another_persons_token_asks(browser: Browser, tmp_path: Path) -> None:
    async with (
        served(tmp_path, OPTIONS) as shoal,
        opened(browser, f"{shoal.address}/?token={TOKEN}", place="new") as page,
    ):
        await expect(page.get_by_role("link", name="New conversation").first).to_be_visible()
        _, secret = await shoal.tokens.create(NewToken("ben", "chat"), "web:owner")
        await page.goto(f"{shoal.address}/?token={secret}")
        await expect(page.get_by_role("heading", name="Sign in as ben?")).to_be_visible()
        await page.get_by_role("link", name="Cancel").click()
        await page.wait_for_function("localStorage.getItem('shoal.who') === 'web:owner'")
        await page.goto(f"{shoal.address}/?token={secret}")
        await page.get_by_role("button", name="Sign in as ben").click()
        await expect(page.get_by_role("link", name="New conversation").first).to_be_visible()
        await page.wait_for_function("localStorage.getItem('shoal.who') === 'web:ben'")
