"""The web console: static files for the HTTP server. `index.html` is served at `/`, and all files under `/console/`."""

from pathlib import Path

FILES = Path(__file__).parent / "static"

PREFIX = "/console"

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
"""Blocks inline code, inline styles and other hosts."""
