"""How the HTTP surface is served."""

import msgspec


class WebOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the surface is served.

    `allowed_origins` are further origins (scheme://host[:port]) under which a browser may use it, e.g. of a proxy.
    `trusted_proxies` are addresses or networks whose X-Forwarded-Proto counts; loopback's always does.
    `linger_seconds`: how long the rest of a body that was answered already may pause.
    """

    token: str
    host: str = "127.0.0.1"
    port: int = 8420
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    heartbeat_seconds: float = 15.0
    streams_max: int = 256
    slow_reader_seconds: float = 60.0
    body_seconds: float = 60.0
    upload_seconds: float = 600.0
    linger_seconds: float = 2.0
