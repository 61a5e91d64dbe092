#!/usr/bin/env bash
# Installs the packages that a file of requirements/ pins, each checked by its hash, into .venv or below a folder.
#
#   scripts/install.sh requirements/NAME.txt [FOLDER]
#
# uv does that in a third of pip's time. What is wrong then is told by pip, which also knows an index from its own
# configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
[ -x "$python" ] || { echo "there is no .venv; run 'make setup' first" >&2; exit 1; }
# The list is whole, so nothing is resolved again (--no-deps): pip would look for an extra of a pinned package in its newest version.
what=(--quiet --require-hashes --no-deps --only-binary :all: -r "$1")
# forbiddenfruit (of blockbuster), atomicwrites (of matrix-nio) and http-ece have no wheels; nothing else may be built here.
for package in forbiddenfruit atomicwrites http-ece; do what+=(--no-binary "$package"); done
[ $# -lt 2 ] || what+=(--target "$2")

if [ ! -x .venv/bin/uv ]; then
    sed -n '/^uv==/,/[^\\]$/p' requirements/dev.txt >.venv/uv.txt
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r .venv/uv.txt
fi
.venv/bin/uv pip install --python "$python" "${what[@]}" 2>/dev/null ||
    "$python" -m pip install --disable-pip-version-check --no-compile "${what[@]}"
