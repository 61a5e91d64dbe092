#!/usr/bin/env bash
# Unpacks ngIRCd, Debian's IRC server, into build/ngircd, for the tests of packages/shoal-irc. It installs and starts
# nothing on the machine. Does nothing if it is unpacked. If the download fails, it prints why and exits with 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=build/ngircd
mkdir -p build
exec 9>build/.ngircd.lock # tests run concurrently: one downloads it, the others wait
flock 9
[ -f "$target/.done" ] && exit 0
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "ngircd: $tool not found; skipping the tests that need ngIRCd" >&2; exit 1; }
done

work=$(mktemp -d build/.ngircd.XXXXXX)
trap 'rm -rf "$work"' EXIT
fetch() { (cd "$work" && apt-get download -q ngircd libident) >"$work/log" 2>&1; }
if ! fetch && ! { apt-get update -q >>"$work/log" 2>&1 && fetch; }; then
    echo "ngircd: the download failed:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
rm -rf "$target"
touch "$work/.done"
mv "$work" "$target"
