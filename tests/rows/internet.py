"""A small internet in a network namespace: a page at a public address, and Brave's search API under its own name.

`python -m tests.rows.internet HOME TEXT…` runs one turn of `shoal` there per TEXT and prints the results of the tools.
"""

import datetime
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL, PIPE
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.processes import PROGRAM
from tests.rows.running import Running

ADDRESS, BRAVE, KEY = "93.184.215.14", "api.search.brave.com", "a-key-for-brave"
SPACES = ("unshare", "--map-root-user", "--mount", "--net")
PAGE = f"""<html><head><title>Tides</title><script>evil()</script></head>
<body><h1>Tides of May</h1><p>High at <b>noon</b>.</p><p>{"wave " * 20_000}</p></body></html>"""


def can_be_made() -> bool:
    """Return True if this machine allows a separate network namespace."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*SPACES, "ip", "link", "set", "lo", "up"], check=False, capture_output=True).returncode == 0


def asked(home: Path, *texts: str) -> list[str]:
    """Return the results of the tools in call order. Skips the test if no network namespace can be created."""
    if not can_be_made():
        pytest.skip("no network namespace can be made here")
    done = subprocess.run(
        [*SPACES, sys.executable, "-m", "tests.rows.internet", str(home), *texts],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


class Handler(BaseHTTPRequestHandler):
    """Serves the page and Brave's search API."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/res/v1/web/search" and self.headers.get("X-Subscription-Token") == KEY:
            count = int(parse_qs(url.query)["count"][0])
            results = [
                {"title": f"Result {number}", "url": f"https://example.org/{number}", "description": "Of <b>tides</b>."}
                for number in range(40)
            ]
            return self._send(200, "application/json", json.dumps({"web": {"results": results[:count]}}))
        if url.path == "/tides":
            return self._send(200, "text/html; charset=utf-8", PAGE)
        if url.path == "/inside":
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1/secret")
            self.end_headers()
            return None
        return self._send(404, "text/plain", "nothing")

    def _send(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None: ...


def serve(port: int, certificate: Path | None = None) -> None:
    """Serve on a port of the public address, from a background thread."""
    server = ThreadingHTTPServer((ADDRESS, port), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def make_certificate(path: Path) -> None:
    """Write a self-signed certificate for Brave's host name, followed by its private key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, BRAVE)])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(BRAVE)]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM) + key.private_bytes(*form)
    )


def main(home: Path, *texts: str) -> None:
    """Set up the network, run one turn per text, and print the results of the tools as JSON."""
    run = partial(subprocess.run, check=True)
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"])
    home.mkdir(exist_ok=True)
    certificate, hosts = home / "brave.pem", home / "hosts"
    make_certificate(certificate)
    hosts.write_text(f"127.0.0.1 localhost\n{ADDRESS} {BRAVE}\n")
    run(["mount", "--bind", str(hosts), "/etc/hosts"])
    serve(80)
    serve(443, certificate)
    environment = {
        **os.environ, "SHOAL_MODEL__NAME": "fake/fake-1", "BRAVE_API_KEY": KEY, "SSL_CERT_FILE": str(certificate),
        "SHOAL_PERMISSIONS__DEFAULT_PROFILE": "open",
    }  # fmt: skip
    found: list[str] = []
    with Running(home, ""):
        for number, text in enumerate(texts):
            thread = f"terminal:local:{number}"
            run([PROGRAM, "--home", str(home), "ask", "--thread", thread, text], env=environment, stdout=DEVNULL)
            log = [PROGRAM, "--home", str(home), "threads", "log", thread, "--json"]
            events = json.loads(run(log, env=environment, stdout=PIPE).stdout)
            found += [_whole(home, event["data"]) for event in events if event["type"] == "tool_result"]
    print(json.dumps(found))


def _whole(home: Path, result: dict[str, str]) -> str:
    """Return the complete result of a tool. A long result is read from its artifact."""
    name = result.get("artifact", "")
    return (home / "data" / "artifacts" / name[:2] / name).read_text() if name else result["text"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
