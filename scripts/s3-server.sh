#!/usr/bin/env bash
# Puts an S3-compatible server (moto, its S3 part only) into build/s3-server, for the tests of the object store. Does
# nothing when it is there. Exits 1, saying why, when it cannot be had; those tests are then skipped.
#
#   scripts/s3-server.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${1:-build/s3-server}
pins=requirements/s3-server.txt
stamp=$target/.done
[ -f "$stamp" ] && [ "$stamp" -nt "$pins" ] && exit 0

mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.s3-server.XXXXXX")
trap 'rm -rf "$work"' EXIT
python=.venv/bin/python
[ -x "$python" ] || { echo "s3-server: no .venv; run 'make setup' first" >&2; exit 1; }
if ! "$python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: --no-deps \
    --target "$work/python" -r "$pins" 2>"$work/log"; then
    echo "s3-server: the packages in $pins cannot be installed here:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
rm -rf "$target"
touch "$work/.done"
mv "$work" "$target"
