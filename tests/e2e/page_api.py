"""A scripted substitute for the HTTP API behind the page, with the same routes and events and a journal that tests
write.

The object outlives its server. `stop` and `start` restart the server on the same port with all data.
"""

import asyncio
import json
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from shoal.kernel.clock import iso
from shoal.kernel.events import (
    Event,
    EventData,
    LiveData,
    LiveEvent,
    RetryRequested,
    TurnFinished,
    TurnStarted,
    encode_event,
    encode_live,
)
from shoal.kernel.ids import ThreadId, TurnId
from shoal.surfaces.console import CONTENT_SECURITY_POLICY, PREFIX
from shoal.surfaces.http.page import Page

TOKEN = "page-test"
PAGE = Page()
"""Page files, read once for all tests."""
ME = {
    "token": "", "scope": "admin", "person": "web:owner", "author": "owner", "name": "owner", "agent": "",
    "thread_prefix": "web:lobby:", "answers_as": "main", "answers_with": "demo", "home_timezone": "UTC",
}  # fmt: skip
BEGIN = datetime(2026, 3, 5, 9, 0, tzinfo=UTC)


class _Server(uvicorn.Server):
    """A uvicorn server that signals when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()


class Sent(msgspec.Struct):
    """A change that the page requested, such as a message, a steer or a decision."""

    kind: str
    target: str
    body: dict[str, object]


class PageApi:
    """The server and its data. It calls `on_message` for each accepted message.

    Calls without their own route return scripted data:

    - GET: `answers[PATH]`, where PATH is below /api/. Without that entry, the list `lists[PATH]`.
    - Other methods: `answers["METHOD PATH"]`, or an empty response.
    """

    def __init__(self) -> None:
        self.journals: dict[str, list[Event]] = defaultdict(list)
        self.open_turns: dict[str, str] = {}
        self.titles: dict[str, str] = {}
        self.parents: dict[str, str] = {}
        self.marks: dict[str, dict[str, object]] = defaultdict(dict)
        self.lists: dict[str, list[dict[str, object]]] = defaultdict(list)
        self.answers: dict[str, object] = {"me": dict(ME)}
        self.sent: list[Sent] = []
        self.seen_ids: set[str] = set()
        self.on_message: Callable[[str, dict[str, object]], None] = lambda thread, body: None
        self.busy = False
        self.drop_answers = 0
        self.decision_status = 200
        self.decided: dict[str, str] = {}
        self.now = BEGIN
        self._watchers: dict[str, list[asyncio.Queue[bytes]]] = defaultdict(list)
        self._followed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._socket.close()

    @property
    def address(self) -> str:
        """The URL that signs a browser in."""
        return f"http://127.0.0.1:{self.port}/?token={TOKEN}"

    # ---- scripting ----

    def append(self, thread: str, data: EventData, turn: str = "t1", seconds: float = 1.0) -> Event:
        """Append an event to a thread's journal, with a time `seconds` after the previous event, and stream it to
        the page.
        """
        self.now += timedelta(seconds=seconds)
        journal = self.journals[thread]
        event = Event(len(journal) + 1, ThreadId(thread), TurnId(turn), self.now, data)
        journal.append(event)
        if isinstance(data, TurnStarted):
            self.open_turns[thread] = turn
        elif isinstance(data, TurnFinished):
            self.open_turns.pop(thread, None)
        self._show(thread, b"id: %d\ndata: %s\n\n" % (event.seq, encode_event(event)))
        return event

    def live(self, thread: str, data: LiveData, turn: str = "t1") -> None:
        self._show(thread, b"data: %s\n\n" % encode_live(LiveEvent(ThreadId(thread), TurnId(turn), data), self.now))

    def _show(self, thread: str, frame: bytes) -> None:
        for watcher in self._watchers[thread]:
            watcher.put_nowait(frame)

    async def watched(self, thread: str) -> None:
        async with asyncio.timeout(60):
            await self._followed[thread].wait()

    # ---- the server ----

    async def start(self) -> None:
        config = uvicorn.Config(
            self._application(), host="127.0.0.1", port=self.port, log_level="critical", lifespan="off",
            timeout_graceful_shutdown=0,
        )  # fmt: skip
        self._server = _Server(config)
        self._serving = asyncio.ensure_future(self._server.serve())
        await self._server.serving.wait()

    async def stop(self) -> None:
        if self._server is None or self._serving is None:
            return
        for thread, watchers in self._watchers.items():
            self._followed[thread].clear()
            for watcher in watchers:
                watcher.put_nowait(b"")
        self._server.should_exit = True
        await self._serving
        self._server = self._serving = None

    def _application(self) -> Starlette:
        routes = [
            Route("/", self._index),
            Route(f"{PREFIX}/{{name:path}}", self._file),
            Route("/api/threads", self._threads),
            Route("/api/threads/{thread}", self._thread),
            Route("/api/threads/{thread}", self._change, methods=["PATCH"]),
            Route("/api/threads/{thread}", self._delete, methods=["DELETE"]),
            Route("/api/threads/{thread}/events", self._events),
            Route("/api/threads/{thread}/messages", self._message, methods=["POST"]),
            Route("/api/threads/{thread}/attachments", self._upload, methods=["POST"]),
            Route("/api/threads/{thread}/steer", self._steer, methods=["POST"]),
            Route("/api/threads/{thread}/abort", self._abort, methods=["POST"]),
            Route("/api/threads/{thread}/retry", self._retry, methods=["POST"]),
            Route("/api/changes", self._changes),
            Route("/api/approvals/{id}", self._decide, methods=["POST"]),
            Route("/api/triggers", self._add_trigger, methods=["POST"]),
            Route("/api/triggers/{id}", self._remove_trigger, methods=["DELETE"]),
            Route("/api/{name:path}", self._list),
            Route("/api/{name:path}", self._do, methods=["POST", "PUT", "DELETE"]),
        ]
        return Starlette(routes=routes)

    def _known(self, request: Request) -> bool:
        return request.cookies.get("shoal") == TOKEN

    async def _index(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}
        if request.query_params.get("token") == TOKEN:
            response: Response = RedirectResponse("/", 303)
            response.set_cookie("shoal", TOKEN, httponly=True, samesite="strict")
            return response
        return Response(PAGE.read("index.html").content, 200, headers, "text/html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not PAGE.has(name):
            return Response(None, 404)
        file = PAGE.read(name)
        return Response(file.content, 200, {"Cache-Control": "no-cache"}, file.media_type)

    def _info(self, thread: str) -> dict[str, object]:
        journal = self.journals[thread]
        return {
            "thread": thread, "agent": "main", "title": self.titles.get(thread, ""), "last_seq": len(journal),
            "open_turn": self.open_turns.get(thread, ""), "queued": 0,
            "parent": self.parents.get(thread, ""),
            "created_at": iso(BEGIN), "updated_at": iso(journal[-1].at if journal else BEGIN),
            "pinned": False, "archived": False, "model": "", **self.marks[thread],
        }  # fmt: skip

    async def _threads(self, request: Request) -> Response:
        if not self._known(request):
            return _refusal(401, "unauthorized", "Open the URL that Shoal printed.")
        known = sorted(
            (name for name, journal in self.journals.items() if journal), key=lambda name: self.journals[name][-1].at
        )
        archived = request.query_params.get("archived") == "true"
        infos = [self._info(name) for name in reversed(known)]
        return JSONResponse([info for info in infos if info["archived"] is archived])

    async def _thread(self, request: Request) -> Response:
        thread = str(request.path_params["thread"])
        if not self.journals.get(thread):
            return _refusal(404, "not_found", "There is no such thread.")
        return JSONResponse(self._info(thread))

    async def _change(self, request: Request) -> Response:
        thread, body = str(request.path_params["thread"]), json.loads(await request.body())
        self.sent.append(Sent("change", thread, body))
        self.marks[thread] |= body
        return JSONResponse(self._info(thread))

    async def _delete(self, request: Request) -> Response:
        thread = str(request.path_params["thread"])
        self.sent.append(Sent("delete", thread, {}))
        journal = self.journals.pop(thread, [])
        return JSONResponse({"threads": 1, "events": len(journal), "digest": "ab" * 32})

    async def _events(self, request: Request) -> Response:
        thread = str(request.path_params["thread"])
        after = int(request.headers.get("last-event-id") or request.query_params.get("after", "0"))
        journal = self.journals[thread]
        if "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(self._follow(thread, after), media_type="text/event-stream")
        limit = int(request.query_params.get("limit", "1000"))
        body = b"[" + b",".join(encode_event(event) for event in journal[after : after + limit]) + b"]"
        return Response(body, media_type="application/json")

    async def _follow(self, thread: str, after: int) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        yield b"retry: 1000\n: begin\n\n"
        journal = self.journals[thread]
        for event in journal[after if after <= len(journal) else 0 :]:  # a higher number is from an older journal
            yield b"id: %d\ndata: %s\n\n" % (event.seq, encode_event(event))
        self._watchers[thread].append(queue)
        self._followed[thread].set()
        try:
            while frame := await queue.get():
                yield frame
        finally:
            self._watchers[thread].remove(queue)

    async def _changes(self, request: Request) -> Response:
        if not self._known(request):
            return _refusal(401, "unauthorized", "Open the URL that Shoal printed.")
        return StreamingResponse(self._change_frames(), media_type="text/event-stream")

    async def _change_frames(self) -> AsyncIterator[bytes]:
        """Yield the frames of the change stream. Polls the lists, because tests change them directly."""
        yield b": begin\n\n"
        stopped = self._serving
        assert stopped is not None
        seen: dict[str, bytes] = {}
        while self._server is not None and not self._server.should_exit:
            now = {
                "threads": msgspec.json.encode([self._info(name) for name in list(self.journals)]),
                "approvals": msgspec.json.encode(self.lists["approvals"]),
            }
            if changed := [name for name in now if now[name] != seen.get(name)]:
                yield b"data: %s\n\n" % msgspec.json.encode({"changed": changed})
            seen = now
            await asyncio.wait([stopped], timeout=0.05)

    async def _message(self, request: Request) -> Response:
        thread, body = str(request.path_params["thread"]), json.loads(await request.body())
        self.sent.append(Sent("message", thread, body))
        if self.busy:
            return _refusal(429, "busy", "The mailbox is full.")
        message_id = str(body["message_id"])
        duplicate = message_id in self.seen_ids
        self.seen_ids.add(message_id)
        if not duplicate:
            self.on_message(thread, body)
        if self.drop_answers:
            self.drop_answers -= 1
            return Response(None, 502)
        return JSONResponse({"accepted": True, "message_id": message_id, "duplicate": duplicate}, 202)

    async def _upload(self, request: Request) -> Response:
        name, content = request.query_params["name"], await request.body()
        self.sent.append(Sent("upload", name, {"bytes": len(content)}))
        return JSONResponse(
            {"file": f"01-{name}", "name": name, "media_type": "text/plain", "size_bytes": len(content), "digest": ""},
            201,
        )

    async def _steer(self, request: Request) -> Response:
        thread = str(request.path_params["thread"])
        self.sent.append(Sent("steer", thread, json.loads(await request.body())))
        return JSONResponse({"delivered": thread in self.open_turns}, 202)

    async def _abort(self, request: Request) -> Response:
        thread = str(request.path_params["thread"])
        self.sent.append(Sent("abort", thread, {}))
        if turn := self.open_turns.get(thread):
            self.append(thread, TurnFinished("aborted"), turn)
        return JSONResponse({"delivered": bool(turn)}, 202)

    async def _retry(self, request: Request) -> Response:
        thread, body = str(request.path_params["thread"]), json.loads(await request.body())
        self.sent.append(Sent("retry", thread, body))
        self.append(thread, RetryRequested("owner", str(body["model"])), self.open_turns[thread])
        return JSONResponse({"delivered": True}, 202)

    async def _decide(self, request: Request) -> Response:
        self.sent.append(Sent("decision", str(request.path_params["id"]), json.loads(await request.body())))
        if self.decision_status != 200:
            self.lists["approvals"] = []
            return _refusal(self.decision_status, "gone", "It has expired.")
        answer = {"id": request.path_params["id"], "state": "allow"}
        return JSONResponse(answer | self.decided)

    async def _list(self, request: Request) -> Response:
        if not self._known(request):
            return _refusal(401, "unauthorized", "Open the URL that Shoal printed.")
        name = str(request.path_params["name"])
        answer = self.answers.get(name, self.lists[name])
        return PlainTextResponse(answer) if isinstance(answer, str) else JSONResponse(answer)

    async def _do(self, request: Request) -> Response:
        body = await request.body()
        name = str(request.path_params["name"])
        self.sent.append(Sent(request.method, name, json.loads(body) if body else {}))
        return JSONResponse(self.answers.get(f"{request.method} {name}", {}))

    async def _add_trigger(self, request: Request) -> Response:
        body: dict[str, object] = json.loads(await request.body())
        self.sent.append(Sent("trigger", "", body))
        row = body | {
            "id": f"t{len(self.lists['triggers'])}",
            "name": "",
            "state": "active",
            "next_at": iso(BEGIN),
            "error": "",
        }
        self.lists["triggers"].append(row)
        return JSONResponse(row, 201)

    async def _remove_trigger(self, request: Request) -> Response:
        trigger = str(request.path_params["id"])
        self.lists["triggers"] = [row for row in self.lists["triggers"] if row["id"] != trigger]
        return JSONResponse({"removed": True})


def _refusal(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": code, "message": message}, status)
