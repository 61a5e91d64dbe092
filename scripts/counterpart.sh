#!/usr/bin/env bash
# Puts the packages of requirements/NAME.txt into build/NAME/python, apart from the development environment: a real
# server, or another's client, that tests hold Shoal against. Does nothing when they are there. Exits 1, saying why,
# when they cannot be had; those tests are then skipped.
#
#   scripts/counterpart.sh NAME
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=$1
target=build/$name
pins=requirements/$name.txt
mkdir -p build
exec 9>"build/.$name.lock" # tests run side by side: one installs, the others wait for it
flock 9
[ -f "$target/.done" ] && [ "$target/.done" -nt "$pins" ] && exit 0

work=$(mktemp -d "build/.$name.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! scripts/install.sh "$pins" "$work/python" 2>"$work/log"; then
    echo "$name: the packages in $pins cannot be installed here:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
rm -rf "$target"
touch "$work/.done"
mv "$work" "$target"
