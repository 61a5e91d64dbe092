#!/usr/bin/env bash
# Puts ngIRCd, an IRC server of Debian's, into build/ngircd, for the tests of packages/shoal-irc. Nothing is installed on the
# machine, and nothing is started. Does nothing when it is there; exits 1, saying why, when it cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=build/ngircd
mkdir -p build
exec 9>build/.ngircd.lock # tests run side by side: one fetches it, the others wait
flock 9
[ -f "$target/.done" ] && exit 0
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "ngircd: there is no $tool here; the tests that need ngIRCd are skipped" >&2; exit 1; }
done

work=$(mktemp -d build/.ngircd.XXXXXX)
trap 'rm -rf "$work"' EXIT
fetch() { (cd "$work" && apt-get download -q ngircd libident) >"$work/log" 2>&1; }
if ! fetch && ! { apt-get update -q >>"$work/log" 2>&1 && fetch; }; then
    echo "ngircd: it cannot be fetched here:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
rm -rf "$target"
touch "$work/.done"
mv "$work" "$target"
