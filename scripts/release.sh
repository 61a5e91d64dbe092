#!/usr/bin/env bash
# Builds and tries everything that a release publishes, in dist/: wheels and source archives of Shoal and of packages/, the
# image's build context, a bill of materials (CycloneDX), checksums and the release notes.
#
#   scripts/release.sh          build the version in pyproject.toml
#   scripts/release.sh v0.1.0   fail if pyproject.toml has another version
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
[ -z "${1:-}" ] || [ "$1" = "v$version" ] || { echo "release: the tag $1 is not v$version, the version in pyproject.toml" >&2; exit 1; }
grep -q "^VERSION = \"$version\"$" src/shoal/kernel/version.py || { echo "release: kernel/version.py has another version" >&2; exit 1; }
[ -z "${1:-}" ] || grep -q "^## $version ([0-9]" CHANGELOG.md || { echo "release: date the section $version of CHANGELOG.md" >&2; exit 1; }
[ -z "$(git status --porcelain)" ] || { echo "release: commit or remove what 'git status' shows" >&2; exit 1; }

here=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
mkdir dist
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1

echo "release: building $version"
python=${PYTHON:-.venv/bin/python}
"$python" -m venv "$work/build"
"$work/build/bin/pip" install --quiet --require-hashes -r requirements/build.txt
git archive HEAD | tar -x -C "$work" --one-top-level=source
for project in . packages/shoal-*; do
    (cd "$work/source/$project" && "$work/build/bin/hatchling" build -d "$here/dist")
done
git archive --prefix="shoal-$version/" -o "dist/shoal-$version-image-context.tar.gz" HEAD \
    deploy/Dockerfile requirements pyproject.toml README.md LICENSE src docs packages

echo "release: trying the wheel in an empty environment"
"$python" -m venv "$work/empty"
"$work/empty/bin/pip" install --quiet --require-hashes -r requirements/run.txt
"$work/empty/bin/pip" install --quiet --no-deps "dist/shoal-$version-py3-none-any.whl"
export SHOAL_HOME="$work/home" HOME="$work"
[ "$("$work/empty/bin/shoal" --version | grep -o '[0-9][0-9.]*' | head -1)" = "$version" ]
"$work/empty/bin/shoal" ask "What can you do?" </dev/null | tee "$work/answer"
grep -q "demo model" "$work/answer"
"$work/empty/bin/shoal" docs ollama >"$work/page"
grep -q "ollama serve" "$work/page"

echo "release: bill of materials"
"$python" -m venv "$work/sbom"
"$work/sbom/bin/pip" install --quiet "cyclonedx-bom>=7,<8"
"$work/sbom/bin/cyclonedx-py" environment --output-reproducible --pyproject pyproject.toml --mc-type application \
    --output-file "dist/shoal-$version.cdx.json" "$work/empty/bin/python"

awk '/^## /{found++} found==1' CHANGELOG.md >dist/NOTES.md
(cd dist && sha256sum -- * >SHA256SUMS)
ls -l dist
cat <<END

Left to do by hand (docs/releasing.md):
  1. Read dist/NOTES.md as a user would. The first release also needs the steps under "Once".
  2. git tag -s v$version -m "Shoal $version" && git push origin v$version
  3. Approve the environment 'release' when the workflow asks.
END
