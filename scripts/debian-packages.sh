#!/usr/bin/env bash
# Unpacks Debian packages into build/NAME/root, for tests of programs whose installation would start a server. It installs
# nothing on the machine. Does nothing if they are unpacked. If the download fails, it prints why and exits with 1.
#
#   scripts/debian-packages.sh NAME PACKAGE…
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=${1:?a name}
target=build/$name
mkdir -p build
exec 9>"build/.$name.lock" # tests run concurrently: one downloads the packages, the others wait
flock 9
[ -f "$target/.done" ] && exit 0
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "$name: $tool not found; skipping the tests that need $name" >&2; exit 1; }
done

work=$(mktemp -d "build/.$name.XXXXXX")
trap 'rm -rf "$work"' EXIT
fetch() { (cd "$work" && apt-get download -q "${@:2}") >"$work/log" 2>&1; }
if ! fetch "$@" && ! { apt-get update -q >>"$work/log" 2>&1 && fetch "$@"; }; then
    echo "$name: the download failed:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
rm "$work"/*.deb
rm -rf "$target"
touch "$work/.done"
mv "$work" "$target"
