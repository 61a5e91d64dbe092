"""Trusted TLS authorities, and descriptions of connection failures."""

import errno
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

from shoal.kernel import lazy_re

_REASONS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "the connection was reset",
    errno.ECONNABORTED: "the connection was reset",
    errno.EPIPE: "the connection was closed",
    errno.ETIMEDOUT: "no response in time",
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETUNREACH: "no network",
    errno.ENOENT: "connection refused",
}
_NUMBER = lazy_re.compile(r"\[Errno (\d+)\]")


def network_reason(error: BaseException) -> str:
    """Describe why a connection failed, without a final period, for example `connection refused`."""
    for cause in _behind(error):
        match cause:
            case socket.gaierror():
                return (
                    "the host does not exist"
                    if cause.errno != socket.EAI_AGAIN
                    else ("name resolution failed temporarily")
                )
            case ssl.SSLCertVerificationError():
                return f"its certificate is not valid: {cause.verify_message}"
            case ssl.SSLError():
                return "the secure connection (TLS) failed"
            case UnicodeError():
                return "the host name is invalid"
            case OSError():
                number = _NUMBER.search(str(cause))  # asyncio reports several failed attempts as one text
                code = cause.errno or (int(number[1]) if number is not None else 0)
                if code:
                    return _REASONS.get(code) or os.strerror(code).lower()
            case _:
                pass
        if "Timeout" in type(cause).__name__:
            return "no response in time"
    return " ".join(str(error).split()).rstrip(".") or "the connection was lost"


def _behind(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for exception in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _behind(exception)
    if (cause := error.__cause__ or error.__context__) is not None:
        yield from _behind(cause)


_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@cache
def default_tls() -> ssl.SSLContext:
    """Load the machine's trusted authorities, or those in SSL_CERT_FILE and SSL_CERT_DIR.

    Takes 20 ms, so the result is cached.
    """
    if sys.platform != "linux":
        # On other systems, OpenSSL finds no certificate files. httpx2 uses the authorities of the operating system.
        import httpx2

        return httpx2.create_ssl_context()
    context = ssl.create_default_context()
    known = ssl.get_default_verify_paths()
    if not known.cafile and not known.capath:
        bundle = next((path for path in _BUNDLES if Path(path).is_file()), None)
        if bundle is not None:
            context.load_verify_locations(bundle)
    return context
