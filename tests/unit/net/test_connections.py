"""The message that a user sees when a connection fails."""

import socket
import ssl

import pytest

from shoal.net.connections import network_reason


def behind(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


UNTRUSTED = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate (_ssl.c:992)")
UNTRUSTED.verify_message = "self-signed certificate"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 20999)"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 101] no"), "connection refused"),
        (ConnectionResetError(104, "Connection reset by peer"), "the connection was reset"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "the host does not exist"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "name resolution failed temporarily"),
        (UNTRUSTED, "its certificate is not valid: self-signed certificate"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:992)"),
         "the secure connection (TLS) failed"),
        (TimeoutError(), "no response in time"),
        (OSError(110, "Connect call failed"), "no response in time"),
        (OSError(99, "Cannot assign requested address"), "cannot assign requested address"),
        (behind(RuntimeError("All connection attempts failed"), ExceptionGroup("", [OSError(113, "x")])),
         "no route to the host"),
        (RuntimeError("The server said goodbye."), "The server said goodbye"),
        (RuntimeError(), "the connection was lost"),
    ],
)  # fmt: skip
def test_a_failure_is_described_in_plain_words(error: BaseException, said: str) -> None:
    assert network_reason(error) == said
