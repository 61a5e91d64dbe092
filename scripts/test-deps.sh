#!/usr/bin/env bash
# Installs the programs that some tests need, with apt-get if run as root. Otherwise it prints the missing programs, and the
# tests that need them are skipped. It never fails.
set -uo pipefail

if command -v flock >/dev/null; then # concurrent runs would block each other
    # The installation must not inherit the lock: a server that it starts would keep it.
    exec 9>"$(dirname "${BASH_SOURCE[0]}")/../.test-deps.lock"
    flock 9
fi

missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v strace >/dev/null || missing+=(strace)
command -v espeak-ng >/dev/null || missing+=(espeak-ng)
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
command -v chromium-headless-shell >/dev/null || missing+=(chromium-headless-shell) # runs most tests of the page in half the time
command -v firefox-esr >/dev/null || command -v firefox >/dev/null || missing+=(firefox-esr)
command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "test-deps: not installed: ${missing[*]}; the tests that need them will be skipped" >&2
    exit 0
fi

echo "test-deps: installing ${missing[*]}" >&2
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
get() { apt-get install -y -q --no-install-recommends "$@" </dev/null >>"$log" 2>&1 9>&-; }
install() { # all at once; then one by one, so that one that cannot be had does not keep the others out
    get "${missing[@]}" && return
    local failed=0
    for package in "${missing[@]}"; do get "$package" || failed=1; done
    return $failed
}
# A new machine may have no package lists, or old ones. Refresh them only if the installation fails.
if ! install; then
    apt-get update -q </dev/null >>"$log" 2>&1 9>&-
    install || { echo "test-deps: some packages failed to install; the end of the log:" >&2; tail -n 5 "$log" >&2; }
fi
rm -f "$log"
exit 0
