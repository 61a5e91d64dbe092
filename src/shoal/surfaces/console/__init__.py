"""The web console: static files for the HTTP server, `index.html` at `/` and everything under `/console/`."""

from pathlib import Path

FILES = Path(__file__).parent / "static"
"""The directory to serve below `PREFIX`; its `index.html` is also the answer to `/`."""

PREFIX = "/console"
"""Path of the page's own files. The server handles `/`, `/api` and all other paths."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "media-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The policy under which the page works; nothing in it needs inline code, inline styles or another host."""
