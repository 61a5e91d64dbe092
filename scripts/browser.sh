#!/usr/bin/env bash
# Prints the path of a Chromium for the page's tests. If there is none, installs Debian's package when run as root, and
# otherwise prints what to do.
set -euo pipefail

found() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" && return 0
    done
    return 1
}

found && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "browser: no Chromium found. Install the package chromium." >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "browser: installing chromium" >&2
install() { apt-get install -y -q --no-install-recommends chromium </dev/null >&2; }
# A new machine may have no package lists, or old ones. Refresh them only if the installation fails.
install || { apt-get update -q </dev/null >&2 && install; }
found
