"""Options of the HTTP server."""

import msgspec


class WebOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the HTTP server.

    allowed_origins: additional origins (scheme://host[:port]) from which a browser may call, such as the origin of a
    proxy.
    trusted_proxies: addresses or networks whose X-Forwarded-Proto is trusted. Loopback addresses are always trusted.
    linger_seconds: maximum pause between chunks when the server reads the rest of a body after an early response.
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
