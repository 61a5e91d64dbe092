#!/usr/bin/env bash
# Makes sure that there is a Chromium for the page's tests and prints its path. Installs Debian's as root with apt-get;
# elsewhere it says what to do. Does nothing when one is found.
set -euo pipefail

found() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" && return 0
    done
    return 1
}

found && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "browser: no Chromium found, and it cannot be installed here without asking. Install the package chromium." >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "browser: installing chromium" >&2
install() { apt-get install -y -q --no-install-recommends chromium </dev/null >&2; }
# The package lists of a new machine may be absent or old: refresh them only when that helps.
install || { apt-get update -q </dev/null >&2 && install; }
found
