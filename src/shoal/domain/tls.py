"""Whom Shoal trusts when it calls others by TLS: one context for everything in a process that does."""

import ssl
import sys
from functools import cache
from pathlib import Path

_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@cache
def default_tls() -> ssl.SSLContext:
    """The machine's trusted authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR; loaded once (20 ms)."""
    if sys.platform != "linux":
        # Elsewhere OpenSSL does not find them as files; httpx2 asks the system.
        import httpx2

        return httpx2.create_ssl_context()
    context = ssl.create_default_context()
    known = ssl.get_default_verify_paths()
    if not known.cafile and not known.capath:
        bundle = next((path for path in _BUNDLES if Path(path).is_file()), None)
        if bundle is not None:
            context.load_verify_locations(bundle)
    return context
