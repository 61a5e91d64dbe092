#!/usr/bin/env bash
# Takes the page's pictures in docs/images from a real run with a scripted model: all of them, or the named ones (today,
# usage-dark …). Needs Chromium; see scripts/browser.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python -m tests.pictures "$@"
