#!/usr/bin/env bash
# Installs the packages of requirements/NAME.txt into build/NAME/python, outside the development environment: a real server
# or another project's client, which tests run Shoal against. Does nothing if they are installed. If the installation
# fails, it prints why and exits with 1, and those tests are skipped.
#
#   scripts/counterpart.sh NAME
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=$1
target=build/$name
pins=requirements/$name.txt
mkdir -p build
exec 9>"build/.$name.lock" # tests run concurrently: one installs, the others wait
flock 9
[ -f "$target/.done" ] && [ "$target/.done" -nt "$pins" ] && exit 0

work=$(mktemp -d "build/.$name.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! scripts/install.sh "$pins" "$work/python" 2>"$work/log"; then
    echo "$name: installing the packages in $pins failed:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
rm -rf "$target"
touch "$work/.done"
mv "$work" "$target"
