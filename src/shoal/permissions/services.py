"""Programs that are known for archives, the network, packages and services, as data.

Looking at a service is known; what changes something there is denied or asked for (`profiles.py`) and is in no table.
"""

from collections.abc import Mapping

from shoal.permissions.options import Program as P  # noqa: N817


def _outside(options: str = "", operands: str = ":*") -> P:
    return P(operands, options, kind="outside")


_GH_LIST = (
    "-L= -s= -A= -l= -q= -R= -w= -b= -S= -B= -H= -t= -u= -e= -a -c -j --limit= --state= --author= --label= --json="
    " --jq= --repo= --workflow= --branch= --search= --base= --head= --assignee= --template= --comments --web --log"
    " --log-failed --job= --exit-status --verbose --status= --user= --event= --name-only --patch --watch -v"
    " --required --interval= --fail-fast --language= --sort= --order= --owner= --match= --commit= --draft"
)
_GH = dict.fromkeys(("list", "view", "status", "diff", "checks", "watch", "download", "verify"), _outside(_GH_LIST))
_DOCKER_LOOK = _outside("-t= -n= -f= -a -q -l -s --all --quiet --filter= --format= --no-trunc --tail= --follow"
    " --since= --until= --timestamps --size --no-stream --services --no-log-prefix")  # fmt: skip
_DOCKER_LOGS = _outside("-ft -n= --tail= --follow --since= --until= --timestamps --details --no-color --no-log-prefix")
_KUBECTL_LOOK = _outside("-Aw -n= -o= -l= --filename= -c= --all-namespaces --namespace= --output= --selector="
    " --context= --show-labels --sort-by= --watch --field-selector= --no-headers --tail= --since= --previous"
    " --container= --all-containers --timestamps --recursive -p")  # fmt: skip

SERVICES: Mapping[str, P] = {
    # ---- archives ----
    "tar": P(":*", "-cxtvzjJpkhamOPSwrudA -f= -C=d --create --extract --list --verbose --gzip --bzip2 --xz --zstd"
        " --file= --directory=d --exclude= --strip-components= --totals --keep-old-files --overwrite --no-same-owner"
        " --append --wildcards --exclude-vcs --auto-compress --preserve-permissions --no-same-permissions"
        " --transform= --to-stdout --get --version", kind="outside", style="gnu", check="tar"),
    "zip": P(":*", "-rqjuvm0123456789ydg -x= -i= -s= -P= -@", kind="outside"),
    "unzip": P(":*", "-lqvopjntufa -d= -x= -P= -Z1", kind="outside", free=True),
    **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "lz4"), P(
        ":*", "-cdfklnqrtvz123456789 -T= -o=w --stdout --decompress --keep --force --best --fast --list --test"
            " --recursive --quiet --verbose --threads=", kind="outside", free=True)),
    "zcat": P("r*", "-qf", free=True, check="zcat"),
    **dict.fromkeys(("bzcat", "xzcat"), P("r*", "-qf", free=True)),
    # ---- the network ----
    "curl": P(":*", "-sSfLkIivOJgGN#460aqRZn -o=w -H= -d= -X= -F= -T=r -A= -e= -u= -b= -c=w -m= -w= -x= -D=w -r= -C="
        " -z= -y= -Y= --silent --show-error --fail --location --insecure --head --include --verbose --remote-name"
        " --output=w --header= --data= --data-raw= --data-binary= --data-urlencode= --request= --form= --user-agent="
        " --user= --cookie= --cookie-jar=w --max-time= --connect-timeout= --retry= --retry-delay= --write-out="
        " --compressed --fail-with-body --get --json= --referer= --globoff --http1.1 --http2 --tlsv1.2 --proto="
        " --create-dirs --remote-header-name --progress-bar --no-progress-meter --max-redirs= --url= --parallel"
        " --range= --retry-all-errors --retry-connrefused --ipv4 --ipv6 --no-buffer --dump-header=w --upload-file=r"
        " --location-trusted --resolve= --limit-rate= --version --cacert= --unix-socket= --url-query=",
              kind="outside",
              check="reading call",
              startup="~/.curlrc ~/.config/curlrc"),
    "wget": P(":*", "-qcrkpmNSLxE46b -O=w -o=w -P= -t= -T= -n= -l= -A= -R= -I= -X= -D= -U= --quiet"
        " --output-document=w --continue --recursive --no-parent --timeout= --tries= --header= --user-agent="
        " --no-check-certificate --spider --server-response --content-disposition --directory-prefix= --show-progress"
        " --no-verbose --level= --mirror --convert-links --page-requisites --adjust-extension --accept= --reject="
        " --timestamping --wait= --max-redirect= --version --no-clobber --progress= --span-hosts --domains=",
        kind="outside", startup="~/.wgetrc"),
    **dict.fromkeys(("ping", "traceroute", "tracepath"), _outside("-46nqv -c= -W= -i= -w= -m= -s= -t=")),
    **dict.fromkeys(("dig", "host", "nslookup", "whois"), _outside("-46av -t= -x= -p= --short")),
    **dict.fromkeys(("apt", "apt-get"), P(kind="outside", options="-yqq --yes --quiet --no-install-recommends", subs={
        **dict.fromkeys(("update", "install", "upgrade", "remove", "purge", "autoremove", "clean", "search", "show",
            "list",
                         "policy", "download"), _outside("-yqsf --yes --quiet --no-install-recommends --installed"
                             " --upgradable --dry-run --allow-unauthenticated --fix-broken --reinstall --only-upgrade"
                             " --simulate")),
    })),
    "apt-cache": _outside("-n --names-only"),
    "dpkg": P(":*", "-lLsS -c --list --listfiles --status --search --print-architecture", kind="outside"),
    "brew": P(kind="outside", options="--version --prefix=?", subs=dict.fromkeys(
        ("list", "info", "search", "outdated", "deps", "leaves", "config", "doctor"), _outside("--cask --formula"
            " --versions"))),
    # ---- services: looking is known, changing has to be asked for ----
    "gh": P(kind="outside", options="-R= --repo= --version", startup="~/.config/gh/config.yml", subs={
        **dict.fromkeys(("pr", "issue", "repo", "release", "run", "workflow", "gist", "label", "cache", "ruleset",
            "project",
                         "search", "milestone"), P(kind="outside", options="-R= --repo=", subs={
                             **_GH, **dict.fromkeys(("checkout", "clone"), _outside(_GH_LIST)),
                             **dict.fromkeys(("code", "commits", "issues", "prs", "repos"), _outside(_GH_LIST))})),
        "api": P(":*", "-i -X= -q= -H= -t= -p= --method= --jq= --header= --paginate --template= --hostname= --cache="
            " --slurp -f= -F= --field= --raw-field= --include --silent --verbose", kind="outside",
            check="reading call"),
        "auth": P(kind="outside", subs={"status": _outside("-h= --hostname=")}),
        "status": _outside(), "version": _outside(), "help": _outside(),
    }),
    "glab": P(kind="outside", options="-R= --repo= --version", startup="~/.config/glab-cli", subs=dict.fromkeys(
        ("mr", "issue", "ci", "pipeline", "repo", "release", "label", "job"), P(kind="outside", options="-R= --repo=",
            subs={
            **dict.fromkeys(("list", "view", "status", "diff", "trace", "get", "checkout", "lint"), _outside(_GH_LIST)),
        }))),
    **dict.fromkeys(("docker", "podman"), P(kind="outside", options="--version -v", startup="~/.docker", subs={
        **dict.fromkeys(("ps", "images", "info", "version", "stats", "top", "port", "diff", "history", "inspect",
            "search"),
                        _DOCKER_LOOK),
        "logs": _DOCKER_LOGS,
        **dict.fromkeys(("container", "image", "volume", "network", "system", "context"), P(kind="outside", subs={
            **dict.fromkeys(("ls", "list", "inspect", "df", "info", "history", "top", "stats", "port", "show"),
                _DOCKER_LOOK),
            "logs": _DOCKER_LOGS})),
        "compose": P(kind="outside", options="-f=r -p= --file=r --project-name= --profile=", subs={
            **dict.fromkeys(("ps", "config", "images", "top", "ls", "version"), _DOCKER_LOOK), "logs": _DOCKER_LOGS}),
    })),
    **dict.fromkeys(("kubectl", "oc"), P(kind="outside", startup="~/.kube", options="-n= --namespace= --context=",
        subs={
        **dict.fromkeys(("get", "describe", "logs", "top", "explain", "version", "api-resources", "api-versions",
                         "cluster-info"), _KUBECTL_LOOK),
        "config": P(kind="outside", subs=dict.fromkeys(("current-context", "get-contexts", "get-clusters"),
        _outside())),
    })),
    "helm": P(kind="outside", options="-n= --namespace=", startup="~/.kube ~/.config/helm ~/.local/share/helm", subs={
        **dict.fromkeys(("list", "ls", "status", "history", "get", "show", "search", "version", "env", "lint",
            "template"),
                        _outside("-A -n= -o= -f=r --namespace= --all-namespaces --output= --values=r --set="
                            " --revision= --version=")), }),
    **dict.fromkeys(("terraform", "tofu"), P(kind="outside", options="-version --version", subs={
        **dict.fromkeys(("version", "providers", "output", "show", "graph"), P(
            ":*", "-json -no-color -raw", kind="code", style="words")),
        "fmt": P("c*", "-check -diff -recursive -write= -list=", kind="code", style="words"),
        "validate": P("", "-json -no-color", kind="code", style="words"),
        "state": P(kind="outside", subs=dict.fromkeys(("list", "show"), _outside())),
    })),
    "doctl": P(kind="outside", subs={
        "account": P(kind="outside", subs={"get": _outside()}),
        **dict.fromkeys(("compute", "kubernetes", "databases", "apps"), P(kind="outside", subs={
            **dict.fromkeys(("droplet", "image", "region", "size", "cluster", "domain", "volume", "ssh-key"), P(
                kind="outside", subs=dict.fromkeys(("list", "ls", "get"), _outside("-o= --format= --no-header"
                    " --output=")))),
            **dict.fromkeys(("list", "ls", "get", "logs"), _outside("-o= --format= --no-header --output="))})),
    }),
    "hcloud": P(kind="outside", subs=dict.fromkeys(
        ("server", "volume", "network", "image", "location", "datacenter", "ssh-key", "firewall"),
        P(kind="outside", subs=dict.fromkeys(("list", "describe"), _outside("-o= -l= --output= --selector=")))) | {
            "version": _outside()}),
}  # fmt: skip
