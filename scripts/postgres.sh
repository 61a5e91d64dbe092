#!/usr/bin/env bash
# Starts a private PostgreSQL for the tests, or stops it: postgres.sh start|stop FOLDER
# It listens only on a socket in FOLDER, and runs as a user other than root. Prints its URL when it is running.
set -euo pipefail

verb=${1:?start or stop}
folder=${2:?a folder}
if ! command -v initdb >/dev/null; then
    for bin in /usr/lib/postgresql/*/bin; do [ -x "$bin/initdb" ] && PATH="$bin:$PATH"; done
fi
command -v initdb >/dev/null || { echo "PostgreSQL is not installed: initdb not found" >&2; exit 1; }

as_owner() { # PostgreSQL refuses to run as root
    if [ "$(id -u)" -ne 0 ]; then "$@"; else setpriv --reuid="$(id -u "$owner")" --regid="$(id -g "$owner")" --clear-groups "$@"; fi
}
owner=$(id -un)
if [ "$(id -u)" -eq 0 ]; then owner=postgres; id -u postgres >/dev/null 2>&1 || owner=nobody; fi

case $verb in
start)
    mkdir -p "$folder/data"
    [ "$(id -u)" -ne 0 ] || chown -R "$owner" "$folder"
    cd "$folder"
    [ -e "$folder/data/PG_VERSION" ] ||
        as_owner initdb -D "$folder/data" -U shoal --auth=trust --encoding=UTF8 --no-locale >"$folder/initdb.log" 2>&1
    as_owner pg_ctl -D "$folder/data" -l "$folder/server.log" -w -s \
        -o "-c listen_addresses= -c unix_socket_directories='$folder' -c max_connections=200" start
    echo "postgresql://shoal@/postgres?host=$folder"
    ;;
stop)
    cd "$folder"
    as_owner pg_ctl -D "$folder/data" -m immediate -w -s stop
    ;;
*)
    echo "use start or stop, not $verb" >&2
    exit 2
    ;;
esac
