#!/usr/bin/env bash
# Creates build/agentdojo, the environment of the AgentDojo benchmark, with 76 packages (about 300 MB). Does nothing if it
# exists. If the installation fails, it prints one line with the reason and exits with 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=build/agentdojo
[ -e "$folder/.done" ] && exit 0
rm -rf "$folder"
mkdir -p build
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { .venv/bin/python -m venv "$folder" && "$folder/bin/pip" install --quiet agentdojo==0.1.35 mcp==2.3.0; } >"$log" 2>&1; then
    echo "agentdojo: installing the packages failed: $(grep -i error "$log" | tail -n 1)" >&2
    rm -rf "$folder"
    exit 1
fi
touch "$folder/.done"
