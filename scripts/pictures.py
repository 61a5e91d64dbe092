"""Create the README's pictures from real runs with a scripted model: `.venv/bin/python scripts/pictures.py`.

`docs/images/approval.png` shows the page in Chromium. `docs/images/kill.svg` shows two terminals in real time, while
the server is killed and restarted.
"""

import asyncio
import html
import json
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from PIL import Image
from playwright.async_api import async_playwright

from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.model.fake import FakeSettings
from shoal.testing.model.script import Seen

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PROGRAMS = Path(sys.executable).parent
WORKSPACE = Path(".shoal/agents/main/workspace")
PORT = 8170
COLORS = 96
"""Number of colors in the page's picture. More colors only make the file larger."""

PAGE = "<h1>Harbour</h1>\n<p>The office is open from 8 to 18.</p>\n"
OPENING = "From Monday, the office opens at 7. Update the page and publish it."
SIGNING = "Sign the three letters, one after the other."


def call(tool: str, text: str = "", **arguments: str) -> Reply:
    return Reply(text, calls=(Call(tool, json.dumps(arguments)),))


@asynccontextmanager
async def home_with(model: FakeModel, more: str = "") -> AsyncGenerator[Path]:
    """Create a user's folder with a home directory that uses this model, and delete it after the block."""
    address = await model.start("127.0.0.1", 0)
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / WORKSPACE).mkdir(parents=True)
        (folder / ".shoal" / "shoal.toml").write_text(
            f'[model]\nname = "mine/demo"\n[providers.mine]\nkind = "openai"\nbase_url = "{address}/v1"\n{more}'
        )
        yield folder
    finally:
        await model.stop()
        shutil.rmtree(folder)


async def run(folder: Path, *command: str) -> Process:
    """Run a command as the folder's user."""
    environ = {"HOME": str(folder), "PATH": f"{PROGRAMS}:/usr/bin:/bin", "TERM": "dumb", "LANG": "C.UTF-8"}
    return await asyncio.create_subprocess_exec(
        *command, env=environ, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )


async def serve(folder: Path) -> tuple[Process, str]:
    """Start a server. Returns its process and its URL when it is ready."""
    process = await run(folder, "shoal", "run", "--port", str(PORT))
    assert process.stdout is not None
    async for line in process.stdout:
        word, _, address = line.decode().strip().partition(" ")
        if word == "ready":
            return process, address
    raise SystemExit("shoal run exited before it was ready")


# ---- the page ----


async def draw_approval() -> None:
    """Draw a conversation on the page, up to the request to approve a command."""
    model = FakeModel(
        call("read", path="index.html"),
        call("edit", path="index.html", old_string="from 8 to 18", new_string="from 7 to 18"),
        call("bash", "The page now says 7. I will push it.", command="git push origin main"),
        "The page is updated. I will publish it when you allow the push.",
        settings=FakeSettings(models=("demo",)),
    )
    network = '[sandbox]\nnetwork = "on"\n'  # without a network, Shoal would not ask
    async with home_with(model, network) as folder, async_playwright() as playwright:
        (folder / WORKSPACE / "index.html").write_text(PAGE)
        server, address = await serve(folder)
        path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        context = await browser.new_context(
            viewport={"width": 1000, "height": 860}, device_scale_factor=1.5, reduced_motion="reduce"
        )
        page = await context.new_page()
        await page.goto(f"{address}?token={(folder / '.shoal' / 'token').read_text().strip()}")
        await page.evaluate("location.hash = '#/new'")
        await page.get_by_role("textbox", name="Message").fill(OPENING)
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Do it").wait_for()
        await page.get_by_role("button", name="Do it").scroll_into_view_if_needed()
        shot = await page.screenshot()
        await browser.close()
        server.terminate()
        await server.wait()
    image = Image.open(BytesIO(shot)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    image.save(IMAGES / "approval.png", optimize=True)


# ---- the terminals ----

Kind: TypeAlias = Literal["typed", "said", "bad"]


class Line(NamedTuple):
    """A line that a terminal (0 or 1) showed, and the time in seconds."""

    at: float
    terminal: int
    text: str
    kind: Kind


class Recording:
    """The output of two terminals, with timestamps."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._began = time.monotonic()

    def add(self, terminal: int, text: str, kind: Kind = "said") -> None:
        self.lines.append(Line(time.monotonic() - self._began, terminal, text, kind))

    async def follow(self, process: Process) -> None:
        """Record the output of the second terminal's program until it ends."""
        assert process.stdout is not None
        async for line in process.stdout:
            self.add(1, line.decode().rstrip())

    async def serve(self, folder: Path) -> Process:
        """Start the server in the first terminal."""
        self.add(0, f"$ shoal run --port {PORT}", "typed")
        server, address = await serve(folder)
        self.add(0, f"ready {address}")
        return server


async def draw_kill() -> None:
    """Draw a turn of three commands. The server is killed while the model works on the third one."""
    reached = asyncio.Event()

    def script(seen: Seen) -> Reply:
        done = sum(message.role == "tool" for message in seen.messages)
        if done == 2:
            reached.set()
        if done == 3:
            return Reply("All three letters are signed.")
        return call("bash", command=f"echo letter {done + 1} signed >> signed.txt")

    model = FakeModel(script=script, settings=FakeSettings(latency_seconds=1.5, models=("demo",)))
    recording = Recording()
    async with home_with(model, '[permissions]\ndefault_profile = "open"\n') as folder:
        server = await recording.serve(folder)
        recording.add(1, f'$ tail -f signed.txt & shoal ask "{SIGNING}"', "typed")
        signed = folder / WORKSPACE / "signed.txt"
        signed.touch()
        tail = await run(folder, "tail", "-f", str(signed))
        asked = await run(folder, "shoal", "ask", SIGNING)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(recording.follow(tail))
            tasks.create_task(recording.follow(asked))
            await reached.wait()
            await asyncio.sleep(0.5)
            server.send_signal(signal.SIGKILL)
            await server.wait()
            recording.add(0, f"[kill -9 {server.pid}] Killed", "bad")
            await asyncio.sleep(2.5)
            server = await recording.serve(folder)
            await asked.wait()
            tail.terminate()
        recording.add(1, "$ cat signed.txt", "typed")
        await recording.follow(await run(folder, "cat", str(signed)))
        server.terminate()
        await server.wait()
    (IMAGES / "kill.svg").write_text(drawn(recording.lines), encoding="utf-8")


COLUMNS, ROWS = 84, (5, 9)
LINE_PX, CHAR_PX, REST_SECONDS = 19, 7.83, 6
TITLES = ("server", "user")
COLORS_OF = {"typed": "#9ecbff", "said": "#d7dde4", "bad": "#ff8a80"}


def drawn(lines: list[Line]) -> str:
    """Return a looping SVG animation of the lines. With reduced motion, it shows all lines at once."""
    seconds = lines[-1].at + REST_SECONDS
    width = round(COLUMNS * CHAR_PX) + 32
    tops = (0, (ROWS[0] + 2) * LINE_PX + 16)
    height = tops[1] + (ROWS[1] + 2) * LINE_PX + 8
    parts: list[str] = []
    styles: list[str] = []
    for terminal, top in enumerate(tops):
        tall = (ROWS[terminal] + 2) * LINE_PX
        parts.append(f'<rect x="4" y="{top + 4}" width="{width - 8}" height="{tall}" rx="8" fill="#171c22"/>')
        parts.append(f'<text x="16" y="{top + 22}" fill="#7d8894">{TITLES[terminal]}</text>')
    rows = [0, 0]
    for number, line in enumerate(lines):
        text = line.text
        for piece in [text[at : at + COLUMNS - 2] for at in range(0, max(len(text), 1), COLUMNS - 2)]:
            y = tops[line.terminal] + 22 + (rows[line.terminal] + 1) * LINE_PX
            rows[line.terminal] += 1
            fill = COLORS_OF[line.kind]
            parts.append(f'<text class="l{number}" x="16" y="{y}" fill="{fill}">{html.escape(piece)}</text>')
        share = 100 * line.at / seconds
        styles.append(f"@keyframes k{number}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}")
        styles.append(f".l{number}{{animation:k{number} {seconds:.1f}s infinite}}")
    assert all(map(int.__le__, rows, ROWS)), rows
    said = "The server is killed with kill -9 during a turn. After a restart, the turn continues."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{said}">\n'
        f"<style>text{{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}}"
        f"@media (prefers-reduced-motion:no-preference){{{''.join(styles)}}}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


async def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    await draw_approval()
    await draw_kill()


if __name__ == "__main__":
    asyncio.run(main())
