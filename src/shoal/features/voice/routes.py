"""API endpoint for spoken replies."""

import anyio.to_thread
from starlette.responses import Response

from shoal.features.voice.service import VoiceService
from shoal.kernel.clock import Clock
from shoal.kernel.errors import NotFound
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.posts import spoken_id
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import EVERYONE, Routes
from shoal.surfaces.http.routes_files import media_type_of

routes = Routes()

WAIT_SECONDS = 30.0
LOOK_SECONDS = 0.25


@routes("GET /api/threads/{thread}/turns/{turn}/speech", EVERYONE, media_type="application/octet-stream")
async def speech(store: Store, clock: Clock, voice: VoiceService, thread: ThreadId, turn: str) -> Response:
    """Return the audio of a turn's spoken reply. Waits up to 30 seconds while the audio is generated. Returns 404 if
    the reply was not spoken.
    """
    post = spoken_id(TurnId(turn))
    until = clock.monotonic() + WAIT_SECONDS
    while (recording := await voice.recording(thread, post)) is None:
        fate = await store.outbox.fate(post)
        if fate is None or fate.state not in ("pending", "sending") or clock.monotonic() > until:
            raise NotFound("This turn has no audio reply.")
        await clock.sleep(LOOK_SECONDS)
    content = await anyio.to_thread.run_sync(recording.read_bytes)
    return Response(content, media_type=media_type_of(recording.name), headers={"Cache-Control": "private, no-cache"})
