#!/usr/bin/env bash
# Starts a private Docker daemon for the tests, with an image of this machine's programs, or stops it.
#   scripts/dockerd.sh start DIR    needs root and curl; creates the socket DIR/docker.sock and the image shoal-test.
#                                   Without an installed dockerd, it unpacks Debian's packages into build/docker.
#   scripts/dockerd.sh stop DIR
# It changes none of the machine's network or firewall rules.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
action=${1:?start or stop}
dir=${2:?a directory}
socket=$dir/docker.sock
programs=(
    bash dash cat cut du echo env false grep head id kill ln ls mkdir mknod mount nsenter printenv printf ps pwd rm
    sed seq setsid sh sleep sort stat sysctl tail tee touch tr true umount uname unshare wc chroot
)

api() { # METHOD PATH [CURL OPTIONS]
    curl -sS -f --unix-socket "$socket" -X "$1" "http://docker$2" "${@:3}"
}

make_image() { # from the programs and their libraries
    local root=$dir/image
    mkdir -p "$root"/{etc,home,root,proc,sys,dev,tmp,usr/{bin,lib,lib64,sbin},workspace,skills}
    for name in bin lib lib64 sbin; do ln -sfn "usr/$name" "$root/$name"; done
    printf 'root:x:0:0::/root:/bin/bash\nsandbox:x:1000:1000::/workspace:/bin/bash\n' >"$root/etc/passwd"
    chmod 1777 "$root/tmp"
    local program path
    for program in "${programs[@]}"; do
        path=$(readlink -f "$(type -P "$program")") || continue
        install -m 755 "$path" "$root/usr/bin/$program"
        { ldd "$path" 2>/dev/null || true; } | grep -oE '/[^ )]+' | while read -r library; do
            install -D -m 755 "$(readlink -f "$library")" "$root/usr${library#/usr}"
        done
    done
    tar -C "$root" -c . | api POST "/images/create?fromSrc=-&repo=shoal-test&tag=latest" --data-binary @- \
        -H 'Content-Type: application/x-tar' >/dev/null
}

case $action in
start)
    if ! command -v dockerd >/dev/null; then
        "$checkout/scripts/debian-packages.sh" docker docker.io containerd runc
        PATH=$PATH:$checkout/build/docker/root/usr/sbin:$checkout/build/docker/root/usr/bin
    fi
    mkdir -p "$dir"
    dockerd --host "unix://$socket" --data-root "$dir/data" --exec-root "$dir/run" --pidfile "$dir/dockerd.pid" \
        --iptables=false --bridge=none --ip-masq=false </dev/null >"$dir/dockerd.log" 2>&1 &
    for _ in {1..300}; do
        [ -S "$socket" ] && api GET /_ping >/dev/null 2>&1 && break
        kill -0 $! 2>/dev/null || { tail -n 5 "$dir/dockerd.log" >&2; exit 1; }
        sleep 0.2
    done
    make_image
    ;;
stop)
    pid=$(cat "$dir/dockerd.pid" 2>/dev/null) || exit 0
    kill "$pid" 2>/dev/null || exit 0
    for _ in {1..150}; do
        kill -0 "$pid" 2>/dev/null || exit 0
        sleep 0.2
    done
    kill -9 "$pid"
    ;;
*)
    echo "usage: $0 start|stop DIR" >&2
    exit 2
    ;;
esac
