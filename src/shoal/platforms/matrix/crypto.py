"""Encrypted rooms. matrix-nio encrypts and decrypts messages and stores the keys. Shoal sends the requests.

Every device of every member receives the keys, including unverified devices. Access depends on the person, not on the
device. Keys are stored in the home directory.
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
    RoomKeyRequestResponse,
    SyncResponse,
    ToDeviceResponse,
)
from nio import Event as NioEvent
from nio.client.base_client import Client, ClientConfig
from nio.crypto.attachments import decrypt_attachment, encrypt_attachment
from nio.store.database import SqliteStore

from shoal.kernel.errors import PlatformError
from shoal.kernel.untrusted import UNREADABLE
from shoal.platforms.http import Json
from shoal.platforms.matrix.wire import Encryption, JsonObject, MatrixApi, MatrixEvent, path_of

logging.getLogger("nio").setLevel(logging.WARNING)  # nio logs every event at lower levels

R = TypeVar("R", bound=Response)


class _FileHash(msgspec.Struct, frozen=True):
    sha256: str


class _FileKey(msgspec.Struct, frozen=True):
    k: str


class _FileEncryption(msgspec.Struct, frozen=True):
    key: _FileKey
    iv: str
    hashes: _FileHash


class _EncryptedMessage(msgspec.Struct, frozen=True):
    file: _FileEncryption


class MegolmEncryption(Encryption):
    """Encrypts and decrypts as the account's device. `folder` contains the device's keys."""

    works = True

    def __init__(self, api: MatrixApi, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._client: Client | None = None
        self._calling = anyio.Lock()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and client.store is not None:
            client.store.database.close()

    async def take(self, synced: bytes) -> None:
        client = await self._machine()
        response = SyncResponse.from_dict(_object(synced))
        if not isinstance(response, SyncResponse):
            raise PlatformError("The homeserver's sync response has an unknown format.")
        client.receive_response(response)
        async with self._calling:
            if client.should_upload_keys:
                assert client.olm is not None
                uploaded = await self._call("upload", client.olm.share_keys())
                client.receive_response(_read(KeysUploadResponse.from_dict(uploaded), KeysUploadResponse))
            await self._query(client)
            if client.should_claim_keys:
                await self._claim(client, client.get_users_for_key_claiming())
            for message in tuple(client.outgoing_to_device_messages):
                content: JsonObject = message.content  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                body: JsonObject = {"messages": {message.recipient: {message.recipient_device: content}}}
                await self._api.call("PUT", path_of("sendToDevice", message.type, uuid4().hex), msgspec.Raw, body)
                client.receive_response(ToDeviceResponse(message))

    def decrypt(self, room: str, event: MatrixEvent) -> MatrixEvent | None:
        client, megolm_event = self._client, _megolm_event(room, event)
        if client is None or megolm_event is None:
            return None
        try:
            inner: JsonObject = client.decrypt_event(megolm_event).source
        except EncryptionError:
            return None
        kind, content = inner.get("type"), inner.get("content")
        if not isinstance(kind, str) or not isinstance(content, dict):
            return None
        # The relation is not encrypted, because the homeserver needs it to group threads.
        outside = _object(event.content)
        relation = {"m.relates_to": outside["m.relates_to"]} if "m.relates_to" in outside else {}
        whole: JsonObject = {**relation, **content}
        return msgspec.structs.replace(event, type=kind, content=msgspec.Raw(msgspec.json.encode(whole)))

    async def request_key(self, room: str, event: MatrixEvent) -> None:
        """Request an event's key, once per Megolm session. Raises PlatformError.
        Source: spec.matrix.org, client-server API, m.room_key_request.
        """
        client, megolm_event = await self._machine(), _megolm_event(room, event)
        if megolm_event is None or not client.device_id or megolm_event.session_id in client.outgoing_key_requests:
            return
        for user, device in ((megolm_event.sender, megolm_event.device_id or "*"), (client.user_id, "*")):
            asked = megolm_event.as_key_request(user, client.device_id, device_id=device)
            content: JsonObject = asked.content  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            body: JsonObject = {"messages": {user: {device: content}}}
            await self._api.call("PUT", path_of("sendToDevice", asked.type, uuid4().hex), msgspec.Raw, body)
        session = megolm_event.session_id or ""
        client.receive_response(RoomKeyRequestResponse(session, session, room, megolm_event.algorithm))

    async def encrypt(self, room: str, kind: str, content: JsonObject) -> JsonObject:
        """Encrypt an event's content, after sending the key to every device in the room. Raises PlatformError."""
        client = await self._machine()
        async with self._calling:
            try:
                # Every device in the room must receive the keys of later messages.
                known = client.rooms.setdefault(room, MatrixRoom(room, client.user_id, encrypted=True))
                known.encrypted = True
                if not known.members_synced:
                    members = _object(
                        await self._api.call("GET", path_of("rooms", room, "joined_members"), msgspec.Raw)
                    )
                    client.receive_response(
                        _read(JoinedMembersResponse.from_dict(members, room), JoinedMembersResponse)
                    )
                await self._query(client)
                olm = client.olm
                assert olm is not None
                if olm.should_share_group_session(room):
                    missing = client.get_missing_sessions(room)
                    if missing:
                        await self._claim(client, missing)
                    people = list(known.users)
                    for shared_with, messages in olm.share_group_session_parallel(
                        room, people, ignore_unverified_devices=True
                    ):
                        path = path_of("sendToDevice", "m.room.encrypted", uuid4().hex)
                        await self._api.call("PUT", path, msgspec.Raw, messages)
                        olm.outbound_group_sessions[room].users_shared_with.update(shared_with)
                    olm.outbound_group_sessions[room].shared = True
                _, sealed = client.encrypt(room, kind, content)
            except (EncryptionError, LocalProtocolError) as error:
                raise PlatformError(f"Encrypting the message failed: {error}") from error
        return {**sealed}

    def encrypt_file(self, content: bytes) -> tuple[bytes, JsonObject]:
        hidden, keys = encrypt_attachment(content)
        return hidden, keys

    def decrypt_file(self, content: bytes, message: bytes) -> bytes:
        try:
            file = msgspec.json.decode(message, type=_EncryptedMessage).file
            return decrypt_attachment(content, file.key.k, file.hashes.sha256, file.iv)
        except (EncryptionError, *UNREADABLE) as error:
            raise PlatformError("Decrypting the file failed: its key does not match.", permanent=True) from error

    # ---- parts ----

    async def _machine(self) -> Client:
        """Return the nio client. The first call opens the account's key store, and creates it if necessary."""
        if self._client is None:
            login = await self._api.login()
            if not login.device_id:
                raise PlatformError(
                    "The Matrix access token does not belong to a device, so Shoal cannot encrypt messages. Use "
                    "the access token of a device."
                )
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            config = ClientConfig(store=SqliteStore, store_name="keys.db", encryption_enabled=True)
            client = Client(login.user_id, login.device_id, str(self._folder), config)
            client.restore_login(login.user_id, login.device_id, "unused")
            self._client = client
        return self._client

    async def _query(self, client: Client) -> None:
        if client.should_query_keys:
            users: JsonObject = {user: list[Json]() for user in client.users_for_key_query}
            keys = await self._call("query", {"device_keys": users})
            client.receive_response(_read(KeysQueryResponse.from_dict(keys), KeysQueryResponse))

    async def _claim(self, client: Client, wanted: dict[str, list[str]]) -> None:
        keys: JsonObject = {
            user: dict[str, Json].fromkeys(devices, "signed_curve25519") for user, devices in wanted.items()
        }
        claimed = await self._call("claim", {"one_time_keys": keys})
        client.receive_response(_read(KeysClaimResponse.from_dict(claimed), KeysClaimResponse))

    async def _call(self, what: str, body: JsonObject) -> JsonObject:
        return _object(await self._api.call("POST", path_of("keys", what), msgspec.Raw, body))


def _megolm_event(room: str, event: MatrixEvent) -> MegolmEvent | None:
    raw = {
        "type": event.type, "sender": event.sender, "event_id": event.event_id,
        "origin_server_ts": event.origin_server_ts, "content": _object(event.content),
    }  # fmt: skip
    event_read = NioEvent.parse_encrypted_event(raw)  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(event_read, MegolmEvent) or not event_read.sender_key or not event_read.session_id:
        return None
    event_read.room_id = room
    return event_read


def _read(response: Response, kind: type[R]) -> R:
    if not isinstance(response, kind):
        raise PlatformError("The homeserver's response to a key request has an unknown format.")
    return response


def _object(encoded: bytes | msgspec.Raw) -> JsonObject:
    """Decode JSON that is known to be a valid object."""
    content: JsonObject = msgspec.json.decode(bytes(encoded))
    return content
