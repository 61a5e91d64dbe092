"""Options of the HTTP server."""

import msgspec


class WebOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the HTTP server.

    `allowed_origins` are additional origins (scheme://host[:port]) from which a browser may call, e.g. a proxy's.
    `trusted_proxies` are addresses or networks whose X-Forwarded-Proto is trusted; loopback's always is. After an early
    response, the rest of a body may pause for `linger_seconds`.
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
