"""Encrypted rooms, by matrix-nio's machine without its network: it keeps the keys, and our calls carry them.

Everybody's devices get the keys of what is written, verified or not, as other bots do it; who may speak is decided by
the person, not by the device. Keys are kept in the home directory.
"""

import logging
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import anyio
import msgspec
from nio import (
    EncryptionError,
    JoinedMembersResponse,
    KeysClaimResponse,
    KeysQueryResponse,
    KeysUploadResponse,
    LocalProtocolError,
    MatrixRoom,
    MegolmEvent,
    Response,
    SyncResponse,
    ToDeviceResponse,
)
from nio import (
    Event as NioEvent,
)
from nio.client.base_client import Client, ClientConfig
from nio.crypto.attachments import decrypt_attachment, encrypt_attachment
from nio.store.database import SqliteStore

from shoal.chat.matrix.api import MatrixApi, Value, path_of
from shoal.chat.matrix.inbound import Event
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE

logging.getLogger("nio").setLevel(logging.WARNING)  # it tells of every event

R = TypeVar("R", bound=Response)

_Json = dict[str, Value]


class _Hash(msgspec.Struct, frozen=True):
    sha256: str


class _Key(msgspec.Struct, frozen=True):
    k: str


class _Sealed(msgspec.Struct, frozen=True):
    key: _Key
    iv: str
    hashes: _Hash


class _File(msgspec.Struct, frozen=True):
    file: _Sealed


class Crypto:
    """Implements `Sealing` for the account's device; `folder` holds its keys."""

    def __init__(self, api: MatrixApi, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._client: Client | None = None
        self._calling = anyio.Lock()

    @property
    def works(self) -> bool:
        """It does."""
        return True

    def close(self) -> None:
        """Give the key store back; it is opened again when it is used."""
        client, self._client = self._client, None
        if client is not None and client.store is not None:
            client.store.database.close()

    async def take(self, synced: bytes) -> None:
        """Learn keys, devices and members from the answer of a sync. Raises PlatformError."""
        client = await self._machine()
        found = SyncResponse.from_dict(_object(synced))
        if not isinstance(found, SyncResponse):
            raise PlatformError("The homeserver's sync has another form than is known.")
        client.receive_response(found)
        async with self._calling:
            await self._exchange(client)

    def opened(self, room: str, event: Event) -> Event | None:
        """The event that is inside an encrypted one; None when its key is not known."""
        client = self._client
        raw = {
            "type": event.type, "sender": event.sender, "event_id": event.event_id,
            "origin_server_ts": event.origin_server_ts, "content": _object(event.content),
        }  # fmt: skip
        found = NioEvent.parse_encrypted_event(raw)  # pyright: ignore[reportUnknownMemberType]
        if client is None or not isinstance(found, MegolmEvent) or not found.sender_key or not found.session_id:
            return None
        found.room_id = room
        try:
            inner: _Json = client.decrypt_event(found).source
        except EncryptionError:
            return None
        kind, content = inner.get("type"), inner.get("content")
        if not isinstance(kind, str) or not isinstance(content, dict):
            return None
        whole: _Json = {**_relation(_object(event.content)), **content}
        return msgspec.structs.replace(event, type=kind, content=msgspec.Raw(msgspec.json.encode(whole)))

    async def seal(self, room: str, kind: str, content: _Json) -> _Json:
        """The content of an encrypted event for everybody in the room. Raises PlatformError."""
        client = await self._machine()
        async with self._calling:
            try:
                await self._share(client, room)
                _, sealed = client.encrypt(room, kind, content)
            except (EncryptionError, LocalProtocolError) as error:
                raise PlatformError(f"The message could not be encrypted: {error}") from error
        return {**sealed}

    def seal_file(self, content: bytes) -> tuple[bytes, _Json]:
        """A file encrypted, and what its readers need."""
        hidden, keys = encrypt_attachment(content)
        return hidden, keys

    def open_file(self, content: bytes, sealed: bytes) -> bytes:
        """A file decrypted; `sealed` is its message's content as JSON. Raises PlatformError."""
        try:
            file = msgspec.json.decode(sealed, type=_File).file
            return decrypt_attachment(content, file.key.k, file.hashes.sha256, file.iv)
        except (EncryptionError, *UNREADABLE) as error:
            raise PlatformError(f"The file could not be decrypted: {error}", permanent=True) from error

    # ---- parts ----

    async def _machine(self) -> Client:
        """The account's device with its keys, made when there is none."""
        if self._client is None:
            session = await self._api.session()
            if not session.device_id:
                raise PlatformError("The access token belongs to no device, so nothing can be encrypted with it.")
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            config = ClientConfig(store=SqliteStore, store_name="keys.db", encryption_enabled=True)
            client = Client(session.user_id, session.device_id, str(self._folder), config)
            client.restore_login(session.user_id, session.device_id, "unused")
            self._client = client
        return self._client

    async def _exchange(self, client: Client) -> None:
        """Publish our keys, ask for those of others, and answer who needs something of us."""
        if client.should_upload_keys:
            assert client.olm is not None
            found = await self._call("upload", client.olm.share_keys())
            client.receive_response(_read(KeysUploadResponse.from_dict(found), KeysUploadResponse))
        await self._query(client)
        if client.should_claim_keys:
            await self._claim(client, client.get_users_for_key_claiming())
        for message in tuple(client.outgoing_to_device_messages):
            content: _Json = message.content  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            body: _Json = {"messages": {message.recipient: {message.recipient_device: content}}}
            await self._api.call("PUT", path_of("sendToDevice", message.type, uuid4().hex), msgspec.Raw, body)
            client.receive_response(ToDeviceResponse(message))

    async def _query(self, client: Client) -> None:
        if client.should_query_keys:
            users: _Json = {user: list[Value]() for user in client.users_for_key_query}
            found = await self._call("query", {"device_keys": users})
            client.receive_response(_read(KeysQueryResponse.from_dict(found), KeysQueryResponse))

    async def _claim(self, client: Client, wanted: dict[str, list[str]]) -> None:
        keys: _Json = {
            user: dict[str, Value].fromkeys(devices, "signed_curve25519") for user, devices in wanted.items()
        }
        found = await self._call("claim", {"one_time_keys": keys})
        client.receive_response(_read(KeysClaimResponse.from_dict(found), KeysClaimResponse))

    async def _share(self, client: Client, room: str) -> None:
        """Let every device in the room have the key of what comes next. Raises PlatformError."""
        known = client.rooms.setdefault(room, MatrixRoom(room, client.user_id, encrypted=True))
        known.encrypted = True
        if not known.members_synced:
            found = _object(await self._api.call("GET", path_of("rooms", room, "joined_members"), msgspec.Raw))
            client.receive_response(_read(JoinedMembersResponse.from_dict(found, room), JoinedMembersResponse))
        await self._query(client)
        olm = client.olm
        assert olm is not None
        if not olm.should_share_group_session(room):
            return
        missing = client.get_missing_sessions(room)
        if missing:
            await self._claim(client, missing)
        people = list(known.users)
        for shared_with, messages in olm.share_group_session_parallel(room, people, ignore_unverified_devices=True):
            path = path_of("sendToDevice", "m.room.encrypted", uuid4().hex)
            await self._api.call("PUT", path, msgspec.Raw, messages)
            olm.outbound_group_sessions[room].users_shared_with.update(shared_with)
        olm.outbound_group_sessions[room].shared = True

    async def _call(self, what: str, body: _Json) -> _Json:
        return _object(await self._api.call("POST", path_of("keys", what), msgspec.Raw, body))


def _read(found: Response, kind: type[R]) -> R:
    if not isinstance(found, kind):
        raise PlatformError("The homeserver told of keys in another form than is known.")
    return found


def _object(encoded: bytes | msgspec.Raw) -> _Json:
    """An object of JSON that was read once already."""
    found: _Json = msgspec.json.decode(bytes(encoded))
    return found


def _relation(outside: _Json) -> _Json:
    """What an encrypted event belongs to; it stands outside, so that the homeserver can keep threads together."""
    return {"m.relates_to": outside["m.relates_to"]} if "m.relates_to" in outside else {}
