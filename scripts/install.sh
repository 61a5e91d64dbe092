#!/usr/bin/env bash
# Installs the packages that a file in requirements/ pins, with hash checks, into .venv or into a folder.
#
#   scripts/install.sh requirements/NAME.txt [FOLDER]
#
# uv needs a third of pip's time. If it fails, pip tries again: it prints better errors and knows the configured index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
[ -x "$python" ] || { echo "no .venv found; run 'make setup' first" >&2; exit 1; }
# The list is complete, so nothing must be resolved (--no-deps). pip would look for a pinned package's extras in its newest version.
what=(--quiet --require-hashes --no-deps --only-binary :all: -r "$1")
# forbiddenfruit (of blockbuster), atomicwrites (of matrix-nio) and http-ece have no wheels. Nothing else may be built from source.
for package in forbiddenfruit atomicwrites http-ece; do what+=(--no-binary "$package"); done
[ $# -lt 2 ] || what+=(--target "$2")

if [ ! -x .venv/bin/uv ]; then
    sed -n '/^uv==/,/[^\\]$/p' requirements/dev.txt >.venv/uv.txt
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r .venv/uv.txt
fi
.venv/bin/uv pip install --python "$python" "${what[@]}" 2>/dev/null ||
    "$python" -m pip install --disable-pip-version-check --no-compile "${what[@]}"
