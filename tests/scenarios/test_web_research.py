"""Research in a turn that has read pages: searches and reads run without approval, but only for known addresses."""

import json
from collections.abc import Mapping
from pathlib import Path

from shoal.kernel.events import ApprovalRequested, ToolFinished
from shoal.net.addresses import Fetched, FetchRequest
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.tools.builtin.web import read_url_tool, web_search_tool
from shoal.tools.registry import Registry

HTML = (("content-type", "text/html"),)


class Web:
    """Pages by URL, and a search engine. Records every request. A page of None redirects to another site."""

    def __init__(self, pages: Mapping[str, str | None]) -> None:
        self.pages = pages
        self.requests: list[FetchRequest] = []

    async def fetch(self, request: FetchRequest) -> Fetched:
        self.requests.append(request)
        if request.url.startswith("https://html.duckduckgo.com/"):
            number = request.url.rpartition("+")[2]
            links = "".join(
                f'<div class="result"><a class="result__a" href="https://site{number}.example/{one}">x</a></div>'
                for one in range(2)
            )
            return Fetched(request.url, 200, HTML, links.encode())
        page = self.pages.get(request.url, f"<p>{request.url}</p><a href='/more'>more</a>")
        if page is None:
            return Fetched(request.url, 302, (("location", "https://evil.example/"),), b"")
        return Fetched(request.url, 200, HTML, page.encode())

    def serves(self, world: World) -> None:
        for tool in (read_url_tool(self), web_search_tool(self, lambda: "")):
            world.app[Registry].remove(tool.spec.name)
            world.app[Registry].add(tool)


def search(number: int) -> Reply:
    return Reply(calls=(Call("web_search", json.dumps({"query": f"tides {number}"})),))


def read(*urls: str) -> Reply:
    return Reply(calls=tuple(Call("read_url", json.dumps({"url": url})) for url in urls))


async def asked(world: World) -> list[ApprovalRequested]:
    return [event.data for event in await world.journal() if isinstance(event.data, ApprovalRequested)]


async def test_ten_searches_and_twenty_reads_ask_nothing(tmp_path: Path) -> None:
    steps = [
        step
        for number in range(10)
        for step in (search(number), read(f"https://site{number}.example/0", f"https://site{number}.example/1"))
    ]
    web = Web({})
    async with scenario(tmp_path, FakeModel(*steps, "The tide is high."), profile="standard") as world:
        web.serves(world)
        await world.ada.says("find out about tides")
        await world.ada.sees("The tide is high.")
        assert await asked(world) == []
    assert len(web.requests) == 30


async def test_a_link_to_another_site_and_a_composed_address_ask(tmp_path: Path) -> None:
    for number, url in enumerate(
        ("https://evil.example/x", "https://ok.example/?q=secret", "https://ok.example/other")
    ):
        web = Web({"https://ok.example/": "<a href='https://evil.example/x'>x</a> https://ok.example/other"})
        model = FakeModel(read("https://ok.example/"), read(url))
        async with scenario(tmp_path / str(number), model, profile="standard") as world:
            web.serves(world)
            await world.ada.says("read https://ok.example/")
            await world.ada.is_asked()
        assert [one.url for one in web.requests] == ["https://ok.example/"]


async def test_links_of_an_approved_page_are_not_granted(tmp_path: Path) -> None:
    web = Web({"https://evil.example/": "<a href='/more'>x</a>"})
    model = FakeModel(read("https://ok.example/"), read("https://evil.example/"), read("https://evil.example/more"))
    async with scenario(tmp_path, model, profile="standard") as world:
        web.serves(world)
        await world.ada.says("read https://ok.example/")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("https://evil.example/more")
        assert len(await asked(world)) == 2
    assert [one.url for one in web.requests] == ["https://ok.example/", "https://evil.example/"]


async def test_a_redirect_to_another_site_is_not_followed_once_the_turn_is_tainted(tmp_path: Path) -> None:
    web = Web({"https://ok.example/away": None})
    model = FakeModel(read("https://ok.example/"), read("https://ok.example/away"), "done")
    async with scenario(tmp_path, model, profile="standard") as world:
        web.serves(world)
        await world.ada.says("read https://ok.example/ and https://ok.example/away")
        await world.ada.sees("done")
        results = [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]
    assert [one.same_site for one in web.requests] == [False, True]
    assert "redirects to another site, which Shoal did not open: https://evil.example/" in results[-1].text
