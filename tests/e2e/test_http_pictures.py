"""Pictures that replies mention: served from the thread and its agent, identified by content, and never from a
file that the agent may not read.
"""

from pathlib import Path

import httpx2
import pytest
from tests.e2e.test_http_app import PATH, THREAD, TOKEN, Site, site
from tests.e2e.test_page_answers import PIXEL

from shoal.net.connections import default_tls
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario

PAGE = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"


async def fetch(found: Site, path: str) -> int:
    """Return the status for a picture. If it is served, check its type and that caching is forbidden."""
    answer = await found.client.get(f"{PATH}/picture", params={"path": path})
    if answer.status_code == 200:
        assert (answer.content, answer.headers["content-type"]) == (PIXEL, "image/png")
        assert answer.headers["cache-control"] == "private, no-cache"
        assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.status_code


async def talked(found: Site, root: Path) -> Path:
    await found.post(f"{PATH}/messages", {"text": "draw"})
    await found.world.happens(THREAD, "turn_finished")
    workspace = root / "agents" / "main" / "workspace"
    (workspace / "scratch").mkdir(parents=True, exist_ok=True)
    (workspace / "scratch" / "plot.png").write_bytes(PIXEL)
    return workspace


@pytest.mark.parametrize("path", ["scratch/plot.png", "./scratch/plot.png", "/workspace/scratch/plot.png"])
async def test_a_workspace_picture_is_found_by_the_answers_path(tmp_path: Path, path: str) -> None:
    async with site(tmp_path, FakeModel("![plot](scratch/plot.png)")) as served:
        workspace = await talked(served, tmp_path)
        assert await fetch(served, path) == 200
        assert await fetch(served, str(workspace / "scratch" / "plot.png")) == 200  # the path on the host


@pytest.mark.parametrize("folder", ["scratch", "attachments"])
async def test_the_threads_own_pictures_are_found_too(tmp_path: Path, folder: str) -> None:
    async with site(tmp_path, FakeModel("Here.")) as served:
        await talked(served, tmp_path)
        own = tmp_path.joinpath("data", *THREAD.split(":"), folder)
        own.mkdir(parents=True, exist_ok=True)
        (own / "own.png").write_bytes(PIXEL)
        for path in (f"{folder}/own.png", f"/{folder}/own.png"):
            assert await fetch(served, path) == 200


async def test_only_pictures_of_the_thread_and_its_agent_are_served(tmp_path: Path) -> None:
    async with site(tmp_path, FakeModel("Here.")) as served:
        workspace = await talked(served, tmp_path)
        (workspace / "page.png").write_bytes(PAGE)
        (workspace / "notes.png").write_text("a secret")
        (tmp_path / "outside.png").write_bytes(PIXEL)
        (workspace / "link.png").symlink_to(tmp_path / "outside.png")
        outside = ("../outside.png", "../../../outside.png", str(tmp_path / "outside.png"), "link.png", "scratch")
        for path in ("page.png", "notes.png", "none.png", "a\0b.png", *outside):
            assert (path, await fetch(served, path)) == (path, 404)


async def test_a_file_that_the_agent_may_not_read_is_not_served(tmp_path: Path) -> None:
    blind = {"extends": "open", "deny": ["tool:read:/workspace/scratch/.*"]}
    rules = {"default_profile": "blind", "profiles": {"blind": blind}}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        scenario(tmp_path, FakeModel("Here."), settings={"permissions": rules}) as world,
        serve(world.app, WebOptions(token=TOKEN, port=0)) as address,
        httpx2.AsyncClient(verify=default_tls(), base_url=address, headers=headers) as client,
    ):
        served = Site(world, client)
        await talked(served, tmp_path)
        assert await fetch(served, "scratch/plot.png") == 404
