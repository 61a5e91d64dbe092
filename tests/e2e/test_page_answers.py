"""Rendered replies on the page: highlighted code, tables, formulas, task lists, footnotes and pictures, and what
the page loads for them.
"""

from itertools import pairwise
from statistics import median
from urllib.parse import unquote, urlencode

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import PHONE, THREAD, opened, violations
from tests.e2e.test_page_layout import CONTRAST, assert_fits

from shoal.kernel.events import AssistantSaid, Failed, TextStreamed, ToolFinished, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.ids import CallId
from shoal.kernel.messages import Author, ToolCall

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

ANSWER = r"""See the note[^one] and one that is not there[^two].

- [x] done
- [ ] to do

```python
def f(x):
    return "a <b> string"  # a comment
```

```nosuchlanguage
plain
```

Inline $x^2 + y_i$ and \(z\); it costs $5 or $10.

$$
\frac{a}{b}
$$

| wide | table |
|---|---|
| averylongwordwithoutanyplacetobreakitaverylongwordwithoutanyplace | averylongwordwithoutanyplacetobreakit |

[^one]: The **first** note.
"""
FIRST_PAINT_BYTES_MAX = 250_000
PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00"
    b"\x00\rIDATx\x9cc\xfc\xcf\xc0P\x0f\x00\x04\x85\x01\x80\x84\xa9\x8c!\x00\x00\x00\x00IEND\xaeB`\x82"
)


def answer(api: PageApi, text: str, turn: str = "t1") -> None:
    api.append(THREAD, UserSaid("Hello", Author("owner", trusted=True)), turn)
    api.append(THREAD, TurnStarted("main", "demo"), turn)
    api.append(THREAD, AssistantSaid(text), turn)
    api.append(THREAD, TurnFinished("done", text), turn)


async def test_a_finished_answer_is_fully_formatted(browser: Browser, api: PageApi) -> None:
    answer(api, ANSWER)
    async with opened(browser, api.address) as page:
        await expect(page.locator(".hljs-keyword").first).to_have_text("def")
        await expect(page.locator(".code").first).to_contain_text("python")
        await expect(page.locator(".code code").first).to_have_text(
            'def f(x):\n    return "a <b> string"  # a comment\n'
        )
        await expect(page.locator(".code").nth(1)).to_contain_text("plain")
        await expect(page.locator(".katex")).to_have_count(3)
        await expect(page.locator(".formula.is-block .mfrac")).to_be_visible()
        await expect(page.get_by_text("it costs $5 or $10.")).to_be_visible()
        await expect(page.locator(".check.is-done")).to_have_count(1)
        await expect(page.locator(".notes li")).to_contain_text("The first note.")
        await expect(page.get_by_text("one that is not there[^two].")).to_be_visible()
        await page.get_by_role("button", name="Note 1").click()
        await expect(page.locator(".notes li")).to_be_focused()
        await page.get_by_role("button", name="Back to the text").click()
        await expect(page.locator("sup.note-ref")).to_be_focused()
        await expect(page.locator(".row.begin")).to_contain_text("main")
        assert await violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_answer_fits_a_phone_and_is_readable(browser: Browser, api: PageApi, scheme: str) -> None:
    answer(api, ANSWER)
    async with opened(browser, api.address, viewport=PHONE, scheme="dark" if scheme == "dark" else "light") as page:
        await expect(page.locator(".katex").last).to_be_visible()
        await expect(page.locator(".hljs-keyword").first).to_be_visible()
        await assert_fits(page)
        assert (await page.evaluate(CONTRAST))[1] == []


async def test_formulas_run_no_script_and_load_nothing(browser: Browser, api: PageApi) -> None:
    attacks = (
        r"\href{javascript:window.pwned=1}{x}",
        r"\includegraphics{https://evil.example/x.png}",
        r"\htmlStyle{color:red}{x}",
        r"<img src=x onerror=window.pwned=1>",
        r"\def\a{\a\a}\a",
        r"\url{javascript:window.pwned=1}",
        r"\rule{99999em}{99999em}",
    )
    answer(api, "\n\n".join(f"${attack}$" for attack in attacks) + "\n\nAnd $1+1$, the end.")
    requests: list[str] = []
    async with opened(browser, api.address) as page:
        page.on("request", lambda request: requests.append(request.url))
        await page.reload()
        await expect(page.get_by_text("the end.")).to_be_visible()
        await expect(page.locator(".katex").last).to_be_visible()
        assert await page.evaluate("window.pwned") == 0
        assert await page.locator(".formula a, .formula img").count() == 0
        assert await violations(page) == []
        assert not [url for url in requests if "evil.example" in url]


@pytest.mark.parametrize(
    "path", ["scratch/plot.png", "/scratch/deep/plot.png", "attachments/01-plot.png", "../x%20y.png"]
)
async def test_pictures_are_shown_by_their_paths(browser: Browser, api: PageApi, path: str) -> None:
    answer(api, f"![the plot]({path})")
    async with opened(browser, api.address) as page:
        await page.route("**/picture?*", lambda route: route.fulfill(body=PIXEL, content_type="image/png"))
        await page.reload()
        picture = page.get_by_role("img", name="the plot")
        served = (
            f"http://127.0.0.1:{api.port}/api/threads/web%3Alobby%3Atest/picture?{urlencode({'path': unquote(path)})}"
        )
        await expect(picture).to_have_attribute("src", served)
        await expect(picture).to_have_js_property("naturalWidth", 1)


@pytest.mark.parametrize(
    "path", ["scratch/x.svg", "scratch/x.png?a=1", "scratch/%2e%2e/x.png/..", "//evil.example/x.png", "data:x.png"]
)
async def test_other_paths_stay_text(browser: Browser, api: PageApi, path: str) -> None:
    answer(api, f"![the plot]({path}) end")
    async with opened(browser, api.address) as page:
        await expect(page.get_by_text("image: the plot end")).to_be_visible()
        assert await page.locator(".prose img").count() == 0


async def test_a_missing_picture_is_reported(browser: Browser, api: PageApi) -> None:
    answer(api, "![the plot](/etc/x.png) end")
    async with opened(browser, api.address) as page:
        await expect(page.get_by_text("the plot (picture not found) end")).to_be_visible()
        assert await page.locator(".prose img").count() == 0


async def test_a_growing_answer_is_highlighted_piece_by_piece(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("Hello", Author("owner", trusted=True)))
    api.append(THREAD, TurnStarted("main", "demo"))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        api.live(THREAD, TextStreamed("```python\ndef f(): pass\n"))
        await expect(page.locator(".live code")).to_have_text("def f(): pass\n")
        assert await page.locator(".hljs-keyword").count() == 0
        api.live(THREAD, TextStreamed("```\n\nThat is $x$"))
        await expect(page.locator(".live .hljs-keyword").first).to_be_visible()
        await expect(page.locator(".row.begin")).to_contain_text("main")


async def test_little_is_loaded_before_the_first_thread(browser: Browser, api: PageApi) -> None:
    async with opened(browser, api.address, place="new") as page:
        await expect(page.get_by_role("heading", name="What can I help you with?")).to_be_visible()
        await expect(page.locator(".link")).to_have_text("Connected")
        loaded: dict[str, int] = await page.evaluate(
            """() => Object.fromEntries(performance.getEntriesByType("resource")
                 .filter((one) => one.name.includes("/console/")).map((one) => [one.name, one.decodedBodySize]))"""
        )
    assert not [name for name in loaded if any(part in name for part in ("katex", "highlight", "marked", "purify"))]
    assert 50_000 < sum(loaded.values()) < FIRST_PAINT_BYTES_MAX


async def test_commands_in_error_messages_are_shown_as_code(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("Hello", Author("owner", trusted=True)))
    api.append(THREAD, TurnStarted("main", "demo"))
    api.append(THREAD, Failed("auth", "The model refused the API key. Check it with `shoal doctor`."))
    async with opened(browser, api.address) as page:
        await expect(page.locator(".row.error code")).to_have_text("shoal doctor")
        await expect(page.locator(".row.error")).not_to_contain_text("`")


async def test_an_interrupted_call_says_that_its_outcome_is_unknown(browser: Browser, api: PageApi) -> None:
    call = ToolCall(CallId("c1"), "bash", '{"command": "make"}')
    api.append(THREAD, UserSaid("Hello", Author("owner", trusted=True)))
    api.append(THREAD, TurnStarted("main", "demo"))
    api.append(THREAD, AssistantSaid("", (call,), "tool_calls"))
    text = "Interrupted: the outcome is unknown. Check before repeating."
    api.append(THREAD, ToolFinished(call.id, "bash", text, is_error=True))
    async with opened(browser, api.address) as page:
        await expect(page.locator(".tool-state")).to_have_text("interrupted, outcome unknown")


async def test_streaming_text_does_not_overload_a_slow_machine(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("go", Author("owner", trusted=True)))
    api.append(THREAD, TurnStarted("main", "demo"))
    async with opened(browser, api.address) as page:
        await api.watched(THREAD)
        api.live(THREAD, TextStreamed("begin"))
        await page.locator(".growing").wait_for()
        await page.evaluate(
            """() => {
              window.draws = [];
              new MutationObserver(() => {
                const began = performance.now();
                window.draws.push(began);
                while (performance.now() - began < 30); // as on a machine where drawing takes so long
              }).observe(document.querySelector(".growing"), { childList: true, subtree: true });
            }"""
        )
        for number in range(60):
            api.live(THREAD, TextStreamed(f" {number}"))
            await page.evaluate("new Promise(requestAnimationFrame)")
        await expect(page.locator(".growing")).to_contain_text("58 59")
        draws: list[float] = await page.evaluate("window.draws")
        rests = [later - before for before, later in pairwise(draws)]
        assert median(rests) >= 200, rests  # seven times the duration of a draw, because only text is delayed


async def test_streaming_text_causes_no_endless_animation(browser: Browser, api: PageApi) -> None:
    for thread in (THREAD, "web:lobby:other"):
        api.append(thread, UserSaid("go", Author("owner", trusted=True)))
        api.append(thread, TurnStarted("main", "demo"))
    context = await browser.new_context(reduced_motion="no-preference")
    page = await context.new_page()
    await page.goto(f"{api.address}#/t/{THREAD}")
    await api.watched(THREAD)
    api.live(THREAD, TextStreamed("begin"))
    await page.locator(".growing").wait_for()
    await expect(page.locator(".thread.running")).to_have_count(2)
    endless = "document.getAnimations().filter((one) => one.effect.getComputedTiming().iterations === Infinity).length"
    assert await page.evaluate(endless) == 0
    await context.close()
