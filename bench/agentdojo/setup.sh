#!/usr/bin/env bash
# Makes build/agentdojo, the environment of the benchmark AgentDojo: 76 packages, about 300 MB. Does nothing when it is there.
# Ends with 1, and with the reason in one line, where it cannot be made.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=build/agentdojo
[ -e "$folder/.done" ] && exit 0
rm -rf "$folder"
mkdir -p build
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { .venv/bin/python -m venv "$folder" && "$folder/bin/pip" install --quiet agentdojo==0.1.35 mcp==2.3.0; } >"$log" 2>&1; then
    echo "agentdojo: its packages could not be installed: $(grep -i error "$log" | tail -n 1)" >&2
    rm -rf "$folder"
    exit 1
fi
touch "$folder/.done"
