"""Forward connections from 127.0.0.1:PORT to a unix socket while a command runs. Runs inside a sandbox.

    python -I -S forward.py SOCKET PORT PROGRAM ARGUMENT…

The script is started by file name, imports only the standard library, and ends with the command's exit code. It has
the same rights as the command. The proxy at the other end of the socket decides which hosts may be reached.
"""

import os
import socket
import sys
import threading

CHUNK_BYTES = 65_536


def main() -> int:
    path, port, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", int(port)))
    threading.Thread(target=_accept, args=(listener, path), daemon=True).start()
    _, status = os.waitpid(os.posix_spawn(command[0], command, os.environ), 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _accept(listener: socket.socket, path: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client, path), daemon=True).start()


def _serve(client: socket.socket, path: str) -> None:
    with client, socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
        except OSError:
            return
        back = threading.Thread(target=_carry, args=(server, client), daemon=True)
        back.start()
        _carry(client, server)
        back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())
