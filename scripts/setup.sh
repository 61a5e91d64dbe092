#!/usr/bin/env bash
# Creates .venv with Python 3.11 to 3.13, every pinned dependency (checked by hash), and this checkout as editable install.
#
#   PYTHON=/path/to/python scripts/setup.sh     use that interpreter for a new .venv
#
# Does nothing if .venv is newer than the files it depends on. Remove .venv to start over.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stamp=.venv/.setup-done
sources=(pyproject.toml packages/*/pyproject.toml requirements/dev.txt scripts/setup.sh scripts/install.sh)

is_current() {
    [ -f "$stamp" ] && [ -x .venv/bin/python ] || return 1
    for source in "${sources[@]}"; do
        [ "$source" -nt "$stamp" ] && return 1
    done
    # Fails if the checkout was moved or the interpreter was removed.
    .venv/bin/python -c 'import sys; from importlib.util import find_spec; sys.exit(not find_spec("shoal"))' 2>/dev/null
}

is_supported() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if is_supported "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    echo "setup: no usable Python 3.11, 3.12 or 3.13 with venv and pip among: ${PYTHON:-python3.11 python3.12 python3.13 python3}." >&2
    echo "setup: install one (Debian: apt-get install python3 python3-venv) or set PYTHON=/path/to/python." >&2
    exit 1
}

is_current && exit 0

# Two concurrent runs (make -j, two terminals) would undo each other's work.
if command -v flock >/dev/null; then
    exec 9>.setup.lock
    flock 9
    is_current && exit 0
fi

if ! { [ -x .venv/bin/python ] && is_supported .venv/bin/python; }; then
    python=$(find_python)
    echo "setup: creating .venv with $python" >&2
    rm -rf .venv
    "$python" -m venv .venv
fi
rm -f "$stamp"
echo "setup: installing the pinned dependencies into .venv" >&2
scripts/install.sh requirements/dev.txt
# hatchling is pinned above, so the build downloads nothing.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . \
    --editable packages/shoal-import --editable packages/shoal-hardware
touch "$stamp"
echo "setup: done. For \`shoal\` in this terminal: export PATH=\"$PWD/.venv/bin:\$PATH\"" >&2
