"""A person on a real homeserver, who uses matrix-nio's client to write, encrypt, and read the bot's messages."""

import asyncio
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any  # noqa: TID251 (matrix-nio's contents have no types)

import httpx2
from nio import (
    AsyncClient,
    AsyncClientConfig,
    DownloadResponse,
    Event,
    RoomCreateResponse,
    RoomEncryptedMedia,
    RoomSendResponse,
    SyncResponse,
    UploadResponse,
)
from nio.crypto import decrypt_attachment
from tests.synapse import PASSWORD

from shoal.net.connections import default_tls

SECONDS_MAX = 60.0


class Somebody:
    """A person with a client. `seen` lists the events of all rooms, decrypted where possible."""

    def __init__(self, address: str, user: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = AsyncClientConfig(encryption_enabled=True, max_timeouts=3, max_limit_exceeded=3)
        self.client = AsyncClient(address, user, store_path=str(folder), config=config)
        self.id = user
        self.seen: list[Event] = []

    async def arrive(self) -> None:
        await self.client.login(PASSWORD)
        await self.catch_up()

    async def leave(self) -> None:
        await self.client.close()

    async def catch_up(self, seconds: float = 0) -> None:
        synced = await self.client.sync(timeout=int(seconds * 1000), full_state=not self.client.next_batch)
        assert isinstance(synced, SyncResponse), synced
        for room in synced.rooms.join.values():
            self.seen += [event for event in room.timeline.events if isinstance(event, Event)]
        if self.client.should_upload_keys:
            await self.client.keys_upload()
        if self.client.should_query_keys:
            await self.client.keys_query()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not holds():
                await self.catch_up(0.2)

    async def makes_room(self, *invited: str, encrypted: bool = False, direct: bool = True) -> str:
        state = [{"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}]
        response = await self.client.room_create(
            is_direct=direct, invite=list(invited), initial_state=state if encrypted else ()
        )
        assert isinstance(response, RoomCreateResponse), response
        return response.room_id

    async def joined(self, room: str, *people: str) -> None:
        def there() -> bool:
            known = self.client.rooms.get(room)
            return known is not None and all(
                person in known.users and not known.users[person].invited for person in people
            )

        await self.until(there)

    async def says(self, room: str, text: str, **more: object) -> str:
        return await self.sends(room, "m.room.message", {"msgtype": "m.text", "body": text, "m.mentions": {}, **more})

    async def sends(self, room: str, kind: str, content: dict[str, Any]) -> str:
        sent = await self.client.room_send(room, kind, content, ignore_unverified_devices=True)
        assert isinstance(sent, RoomSendResponse), sent
        return sent.event_id

    async def calls(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the homeserver directly, for requests that the client does not offer or sends only by itself."""
        headers = {"authorization": f"Bearer {self.client.access_token}"}
        url = f"{self.client.homeserver}/_matrix/client/v3/{path}"
        async with httpx2.AsyncClient(verify=default_tls(), trust_env=False) as http:
            answer = await http.request(method, url, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    async def seals(self, room: str, text: str, *people: str) -> list[dict[str, Any]]:
        """Send an encrypted text without its keys. Return the messages that deliver the keys."""
        olm = self.client.olm
        assert olm is not None
        missing = self.client.get_missing_sessions(room)
        if missing:
            await self.client.keys_claim(missing)
        shared = olm.share_group_session_parallel(room, list(people), ignore_unverified_devices=True)
        key_messages = [messages for _, messages in shared]
        olm.outbound_group_sessions[room].shared = True
        await self.says(room, text)
        return key_messages

    async def brings(self, keys: list[dict[str, Any]]) -> None:
        for number, messages in enumerate(keys):
            await self.calls("PUT", f"sendToDevice/m.room.encrypted/late{number}", messages)

    async def reacts(self, room: str, event_id: str, emoji: str) -> None:
        relation = {"rel_type": "m.annotation", "event_id": event_id, "key": emoji}
        await self.sends(room, "m.reaction", {"m.relates_to": relation})

    async def sends_file(self, room: str, name: str, content: bytes, *, encrypted: bool = False) -> str:
        response, keys = await self.client.upload(
            BytesIO(content), content_type="text/plain", filename=name, encrypt=encrypted, filesize=len(content)
        )
        assert isinstance(response, UploadResponse), response
        where: dict[str, Any] = (
            {"file": {**(keys or {}), "url": response.content_uri}} if encrypted else {"url": response.content_uri}
        )
        info = {"mimetype": "text/plain", "size": len(content)}
        return await self.sends(room, "m.room.message", {"msgtype": "m.file", "body": name, "info": info, **where})

    async def sees(self, sender: str, part: str) -> Event:
        def found() -> list[Event]:
            return [event for event in self.seen if event.sender == sender and part in str(_content(event))]

        await self.until(lambda: bool(found()))
        return found()[0]

    async def reads(self, event: Event) -> bytes:
        content = _content(event)
        address = content["file"]["url"] if "file" in content else content["url"]
        download = await self.client.download(address)
        assert isinstance(download, DownloadResponse), download
        body = download.body
        assert isinstance(body, bytes)
        if isinstance(event, RoomEncryptedMedia):
            return decrypt_attachment(body, event.key["k"], event.hashes["sha256"], event.iv)
        return body


def _content(event: Event) -> dict[str, Any]:
    content = event.source.get("content")
    return content if isinstance(content, dict) else {}
