#!/usr/bin/env bash
# Takes the pictures of the page in docs/images again, or those that are named (today, usage-dark …), from a real run with a
# scripted model. Needs Chromium: scripts/browser.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python -m tests.pictures "$@"
