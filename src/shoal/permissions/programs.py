"""The programs that are known, as data: their options that are safe, and what their operands are (`options.Program`).

Known is a list, not the rest: a program or option that is not here has to be named by whoever allows it. Options that
run or load something, write where their name does not say, or take more options from a file are left out on purpose
(`sort --compress-program`, `rg --pre`, `tar -I`, `git grep -O`). Looking at a service is known; what changes something
there is denied or asked for (`profiles.py`) and is in no table.
"""

from collections.abc import Mapping

from shoal.permissions.developer_tools import TOOLS
from shoal.permissions.git import GIT
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


_ANY = P(":*", style="none")
_DIGEST = P(
    "r*", "-btwz -l= -c=! --binary --text --tag --zero --quiet --status --strict --ignore-missing --warn", free=True
)
_GREP = P(
    "x r*",
    "-EFGPiwxzsvVbnHhoqaIrLlcTZU -R=! -e= -f=r -m= -d= -D= -A= -B= -C= -# --extended-regexp --fixed-strings"
    " --basic-regexp --perl-regexp --regexp= --file=r --ignore-case --no-ignore-case --word-regexp --line-regexp"
    " --null-data --no-messages --invert-match --version --help --max-count= --byte-offset --line-number"
    " --line-buffered --with-filename --no-filename --label= --only-matching --quiet --silent --binary-files= --text"
    " --directories= --devices= --recursive --dereference-recursive=! --include= --exclude= --exclude-dir="
    " --files-without-match --files-with-matches --count --initial-tab --null --before-context= --after-context="
    " --context= --group-separator= --no-group-separator --color=? --colour=? --binary",
    free=True,
    check="grep",
)
_LS = (
    "-1aAbBcCdDfFgGhHiklLmnNopqQrRsStuUvxXZ -I= -T= -w= --all --almost-all --author --escape --block-size="
    " --ignore-backups --color=? --directory --dired --classify=? --file-type --format= --full-time"
    " --group-directories-first --no-group --human-readable --si --dereference --hide= --hyperlink=? --inode"
    " --ignore= --indicator-style= --kibibytes --numeric-uid-gid --literal --quote-name --quoting-style= --reverse"
    " --recursive --size --sort= --time= --time-style= --tabsize= --width= --context --zero --help --version"
)

BASIC: Mapping[str, P] = {
    # ---- the shell's own ----
    **dict.fromkeys((":", "true", "false", "echo", "cd", "pwd", "type", "umask", "ulimit", "times", "which"), _ANY),
    **dict.fromkeys(("break", "continue", "return", "exit", "shift", "expr", "dirs"), _ANY),
    "jobs": P(":*", "-lnprs"),
    "pushd": P(":*", "-n"),
    "popd": P(":*", "-n -#"),
    "kill": P(":*", style="none", kind="outside"),
    **dict.fromkeys(("pkill", "killall"), P(":*", style="none", kind="outside")),
    "disown": P(":*", "-ahr", kind="outside"),
    "fg": P(":*", kind="outside"),
    "bg": P(":*", kind="outside"),
    # ---- files to text ----
    "cat": P("r*", "-AbeEnstTuv --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs"
        " --show-nonprinting --help --version", free=True),
    "tac": P("r*", "-br -s= --before --regex --separator=", free=True),
    "head": P("r*", "-qvz -c= -n= -# --bytes= --lines= --quiet --silent --verbose --zero-terminated", free=True),
    "tail": P("r*", "-qvzfF -c= -n= -s= -# --bytes= --lines= --quiet --silent --verbose --follow=? --retry --pid="
        " --sleep-interval= --max-unchanged-stats= --zero-terminated", free=True),
    "wc": P("r*", "-cmlLw --bytes --chars --lines --max-line-length --words --total= --files0-from=!", free=True),
    "sort": P("r*", "-bcCdfghiMmnRrsuVz -k= -t= -S= -o=w --key= --field-separator= --buffer-size= --output=w"
        " --check=? --dictionary-order --ignore-case --general-numeric-sort --human-numeric-sort"
        " --ignore-leading-blanks --ignore-nonprinting --merge --month-sort --numeric-sort --random-sort --reverse"
        " --sort= --stable --unique --version-sort --zero-terminated --parallel= --batch-size= --debug"),
    "uniq": P("r w", "-cdDiuz -f= -s= -w= --count --repeated --all-repeated=? --skip-fields= --skip-chars= --group=?"
        " --ignore-case --unique --check-chars= --zero-terminated", free=True, check="uniq"),
    "cut": P("r*", "-nsz -b= -c= -d= -f= --bytes= --characters= --delimiter= --fields= --only-delimited --complement"
        " --output-delimiter= --zero-terminated", free=True),
    "tr": P(":*", "-cCdst --complement --delete --squeeze-repeats --truncate-set1", free=True),
    "comm": P("r*", "-123z --check-order --nocheck-order --output-delimiter= --total --zero-terminated", free=True),
    "join": P("r*", "-iz -a= -e= -1= -2= -j= -o= -t= -v= --header --check-order --nocheck-order --ignore-case",
    free=True),
    "paste": P("r*", "-sz -d= --delimiters= --serial --zero-terminated", free=True),
    "nl": P("r*", "-p -b= -d= -f= -h= -i= -l= -n= -s= -v= -w= --body-numbering= --number-width= --number-separator=",
            free=True),
    "rev": P("r*", free=True),
    "fold": P("r*", "-bs -w= -# --bytes --spaces --width=", free=True),
    "fmt": P("r*", "-cstu -w= -p= -g= -# --width= --split-only --uniform-spacing", free=True),
    "column": P("r*", "-tx -s= -c= -o= -N= -R= --table --separator= --output-separator= --table-columns=", free=True),
    "expand": P("r*", "-i -t= --initial --tabs=", free=True),
    "unexpand": P("r*", "-a -t= --all --first-only --tabs=", free=True),
    "od": P("r*", "-abcdfiloxsv -A= -j= -N= -t= -w=? --address-radix= --skip-bytes= --read-bytes= --format="
        " --output-duplicates --width=? --endian=", free=True),
    "hexdump": P("r*", "-bcCdovx -n= -s= -e= --canonical --length= --skip= --no-squeezing", free=True),
    "xxd": P("r w", "-a -b -e -E -i -p -ps -plain -r -revert -u -C -c= -cols= -g= -groupsize= -l= -len= -s= -seek="
        " -n= -o=", style="compiler", free=True, check="xxd"),
    "strings": P("r*", "-af -n= -t= -e= -# --all --bytes= --radix= --encoding= --print-file-name", check="strings"),
    **dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum"), _DIGEST),
    "shasum": P("r*", "-btp -a= -c=! --algorithm="),
    **dict.fromkeys(("cksum", "sum"), P("r*", "-rs -a= --algorithm=", free=True)),
    "base64": P("r*", "-diD -w= --decode --ignore-garbage --wrap=", free=True),
    "base32": P("r*", "-di -w= --decode --ignore-garbage --wrap=", free=True),
    "iconv": P("r*", "-cl -f=r -t=r -o=w --from-code=r --to-code=r --output=w --list"),
    **dict.fromkeys(("grep", "egrep", "fgrep"), _GREP),
    "rg": P(
        "x r*",
        "-iSswxvnNHIlcoqaFPUpuhV.0 -e= -f=r -g= -t= -T= -A= -B= -C= -m= -M= -d= -r= -j= -E= -# --regexp= --file=r"
        " --glob= --iglob= --type= --type-not= --type-list --after-context= --before-context= --context= --max-count="
        " --max-columns= --max-columns-preview --max-depth= --maxdepth= --max-filesize= --replace= --threads="
        " --encoding= --ignore-case --smart-case --case-sensitive --word-regexp --line-regexp --invert-match"
        " --line-number --no-line-number --with-filename --no-filename --files --files-with-matches"
        " --files-without-match --count --count-matches --only-matching --quiet --text --fixed-strings --pcre2"
        " --multiline --multiline-dotall --pretty --unrestricted --hidden --no-hidden --no-ignore --no-ignore-vcs"
        " --no-ignore-parent --no-config --null --column --no-column --color= --colors= --heading --no-heading --trim"
        " --vimgrep --json --stats --sort= --sortr= --sort-files --passthru --no-messages --crlf --byte-offset"
        " --include-zero --one-file-system --context-separator= --field-match-separator= --glob-case-insensitive"
        " --help --version --debug --engine= --no-binary --binary --line-buffered --follow=! -L=!",
        here=True,
        check="rg",
    ),
    **dict.fromkeys(
        ("fd", "fdfind"),
        P(": r*", "-HIusigFap01q -d= -t= -e= -E= -S= -c= -j= --hidden --no-ignore --unrestricted --case-sensitive"
            " --ignore-case --glob --fixed-strings --absolute-path --full-path --print0 --max-depth= --min-depth="
            " --exact-depth= --type= --extension= --exclude= --size= --color= --threads= --max-results= --quiet"
            " --changed-within= --changed-before= --owner= --strip-cwd-prefix --no-ignore-vcs --follow=! -L=!"
            " --version",
          here=True),
    ),
    "tree": P("r*", "-adfxnCASipshugDFvtcUrJXNqQ -L= -P= -I= -o=w -H= -T= --noreport --dirsfirst --filesfirst --du"
        " --prune --gitignore --filelimit= --charset= --sort= --inodes --device --matchdirs --ignore-case --timefmt="
        " --si --metafirst --version", here=True),
    # ---- about files ----
    **dict.fromkeys(("ls", "dir", "vdir"), P("r*", _LS, free=True, here=True)),
    "stat": P("r*", "-Lft -c= --dereference --file-system --format= --printf= --terse --cached=", free=True),
    "file": P("r*", "-bihkLnNprsv0E -e= -F= -P= --brief --mime --mime-type --mime-encoding --keep-going --dereference"
        " --no-dereference --no-pad --extension --separator= --print0 --raw --special-files --version",
              startup="~/.magic ~/.magic.mgc"),
    "du": P("r*", "-abchkmsxlLDHPS0 -d= -t= -B= -X=! --all --apparent-size --bytes --total --human-readable"
        " --summarize --max-depth= --one-file-system --exclude= --threshold= --block-size= --si --time=?"
        " --count-links --files0-from=!", here=True, free=True),
    "df": P(":*", "-aHhiklPT -B= -t= -x= --all --human-readable --inodes --local --output=? --print-type --si --total"
        " --type= --block-size=", free=True),
    "basename": P(":*", "-az -s= --multiple --suffix= --zero", free=True),
    "dirname": P(":*", "-z --zero", free=True),
    **dict.fromkeys(
        ("realpath", "readlink"),
        P(":*", "-efmnqsvzLP --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet"
            " --relative-to= --relative-base= --strip --no-symlinks --zero --logical --physical", free=True),
    ),
    "diff": P("r r", "-qscuenypTNZEbwBiadtT -r=! -C= -U= -W= -F= -L= -I= -x= -X=r -# --brief --report-identical-files"
        " --context=? --unified=? --ed --normal --side-by-side --width= --left-column --suppress-common-lines"
        " --show-c-function --label= --expand-tabs --recursive=! --no-dereference --new-file --ignore-case"
        " --ignore-trailing-space --ignore-space-change --ignore-all-space --ignore-blank-lines --exclude="
        " --ignore-matching-lines= --text --strip-trailing-cr --minimal --color=? --ignore-tab-expansion",
              free=True),
    "cmp": P("r r : :", "-bls -i= -n= --print-bytes --verbose --silent --quiet --bytes= --ignore-initial=", free=True),
    # ---- about the machine ----
    "date": P("+*", "-uR -I=? -d= -r=r -f=r --date= --utc --universal --iso-8601=? --rfc-3339= --rfc-email"
        " --reference=r"),
    "cal": P(":*", "-13ymsj -A= -B= -n="),
    "seq": P(":*", "-w -s= -f= -# --equal-width --separator= --format=", free=True),
    "sleep": P(":*", free=True),
    **dict.fromkeys(("whoami", "tty", "logname", "arch", "users"), P("")),
    "groups": P(":*"),
    "id": P(":*", "-ugGnrz --user --group --groups --name --real"),
    "uname": P("", "-asnrvmpio --all --kernel-name --nodename --kernel-release --machine --operating-system"),
    "nproc": P("", "--all --ignore="),
    "hostname": P("", "-fsiIdA"),
    "uptime": P("", "-ps --pretty --since"),
    "free": P("", "-bkmghtlw -s= -c= --human --total --mega --giga --si --wide"),
    "locale": P(":*", "-ack"),
    "getconf": P(":*", "-a"),
    "lscpu": P("", "-eaJp --json --extended=? --parse=?"),
    "lsblk": P(":*", "-afilmnprJ -o= --json --output="),
    "ps": P(":*", "-AaefFHjlTxwLM -C= -o= -p= -u= -U= -g= -t= --sort= --no-headers --forest --pid= --ppid= --user= -O=",
            kind="outside"),
    "pgrep": P(":*", "-aflnovxcw -u= -P= -g= -d= -t= --full --list-name --list-full --newest --oldest --count",
               kind="outside"),
    "top": P(":*", "-bcHiS -n= -d= -o= -p= -u=", kind="outside"),
    "vmstat": P(":*", "-aswd -S="),
    **dict.fromkeys(("ss", "netstat"), P(":*", "-tulnpaesrimoxw46H -f= --tcp --udp --listening --numeric --processes",
                                         kind="outside")),
    "lsof": P(":*", "-nPtla -i=? -p= -u= -c= -s=?", kind="outside"),
    "nvidia-smi": P("", "-Lq -l= -i= --query-gpu= --format= --list-gpus", kind="outside"),
    "ip": P(subs=dict.fromkeys(("a", "addr", "address", "link", "l", "r", "route", "neigh"), P("", "-46sbrd")),
            options="-46sjdo --brief --json --color"),
    "dmesg": P("", "-THtxk -l= --human --ctime --level=", kind="outside"),
    # ---- that change files which they name ----
    "mkdir": P("m*", "-pv -m= --parents --mode= --verbose", free=True),
    "touch": P("w*", "-acm -d= -t= -r=r --date= --no-create --reference=r --time=", free=True),
    "tee": P("w*", "-aip --append --ignore-interrupts --output-error=?", free=True, check="tee"),
    "truncate": P("r*", "-co -s= -r= --size= --no-create --reference=", kind="change", free=True),
    "rm": P(":*", "-dfiIrRv --force --interactive=? --recursive --dir --verbose --preserve-root=? --one-file-system",
            kind="change", free=True),
    "rmdir": P(":*", "-pv --parents --verbose --ignore-fail-on-non-empty", kind="change", free=True),
    "unlink": P(":*", kind="change", free=True),
    "cp": P("r*", "-abdfiHlLnPpRrsTuvx -S= -t= --archive --force --interactive --link --dereference --no-clobber"
        " --no-dereference --preserve=? --no-preserve= --parents --recursive --symbolic-link --target-directory="
        " --no-target-directory --update=? --verbose --reflink=? --sparse= --backup=? --suffix= --one-file-system",
            kind="outside", free=True),
    "mv": P("r*", "-bfinTuv -S= -t= --force --interactive --no-clobber --target-directory= --no-target-directory"
        " --update=? --verbose --backup=? --suffix=", kind="outside", free=True),
    "ln": P("r*", "-bfinrsTvLP -S= -t= --force --interactive --symbolic --relative --no-dereference --verbose"
        " --target-directory= --no-target-directory --logical --physical", kind="outside", free=True),
    "install": P("r*", "-bcCdDpTv -g= -m= -o= -t= --directory --mode= --owner= --group= --target-directory= --verbose"
        " --compare --preserve-timestamps", kind="outside"),
    "chmod": P(":*", "-cfvR --changes --silent --quiet --verbose --recursive --reference= -rwxX", kind="change",
    free=True),
    **dict.fromkeys(("chown", "chgrp"), P(":*", "-cfhvRHLP --recursive --verbose --no-dereference --reference= --from=",
                                          kind="change", free=True)),
    "mktemp": P(":*", "-dqu -p= -t --directory --dry-run --quiet --suffix= --tmpdir=?", kind="outside"),
    "split": P("r :", "-d -a= -b= -C= -l= -n= -t= -e -u -x -# --bytes= --lines= --number= --suffix-length= --verbose"
        " --numeric-suffixes=? --additional-suffix= --line-bytes=", kind="outside"),
    "csplit": P("r :*", "-ksz -b= -f= -n= --prefix= --digits= --quiet", kind="outside"),
    "dd": P(":*", style="none", kind="outside"),
    "sync": P(":*", "-df", kind="change"),
    # ---- scripts that are looked into ----
    "sed": P(":*", "-nErsuz -i=? -e= -f=c -l= --quiet --silent --regexp-extended --separate --unbuffered --null-data"
        " --in-place=? --expression= --file=c --line-length= --posix --sandbox --debug --follow-symlinks --version",
             check="sed"),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"),
                    P(":*", "-F= -v= -f=c --field-separator= --assign= --file=c --version", style="posix",
                        check="awk")),
    "jq": P("x r*", "-nrRscCSajeM -f=c --null-input --raw-input --raw-output --slurp --compact-output --color-output"
        " --monochrome-output --sort-keys --join-output --ascii-output --exit-status --tab --indent= --arg=2"
        " --argjson=2 --args --jsonargs --from-file=c --stream --seq --raw-output0 --version", free=True,
            check="jq",
            startup="~/.jq"),
    "yq": P("x r*", "-renPjCMNs -o= -p= -I= --raw-output --output-format= --input-format= --prettyPrint --null-input"
        " --exit-status --colors --no-colors --indent= --tojson", kind="outside", check="yq"),
    # ---- that run the command among their words, and nothing else ----
    "time": P(options="-p", style="posix", rest=True),
    "timeout": P(":", "-v -k= -s= --kill-after= --signal= --preserve-status --foreground --verbose", style="posix",
    rest=True),
    "nice": P(options="-n= -# --adjustment=", style="posix", rest=True),
    "nohup": P(style="posix", rest=True, kind="change"),
    "stdbuf": P(options="-i= -o= -e= --input= --output= --error=", style="posix", rest=True),
    "setsid": P(options="-fwc --fork --wait --ctty", style="posix", rest=True, kind="outside"),
    "ionice": P(options="-t -c= -n=", style="posix", rest=True),
    # ---- interpreters ----
    **dict.fromkeys(
        ("python", "python3", *(f"python3.{number}" for number in range(8, 16))),
        P("c :*", "-bBdEIOqsSuVh -W= -X= --version --help", kind="code", style="posix"),
    ),
    "node": P("c :*", "-vch --version --help --check --test --watch --trace-warnings --no-warnings"
        " --enable-source-maps --experimental-strip-types --experimental-vm-modules --experimental-modules"
        " --stack-trace-limit= --max-old-space-size= --env-file=c --inspect=? --test-reporter= --test-name-pattern="
        " --conditions= --unhandled-rejections=", kind="code", style="posix"),
    "ruby": P("c :*", "-wvcWh -I= --version --help --verbose", kind="code", style="posix"),
    "perl": P("c :*", "-wvTtW", kind="code", style="posix"),
    "php": P("c :*", "-lvqnm -d= --version --syntax-check", kind="code", style="posix"),
    "Rscript": P("c :*", "--vanilla --version --no-save --no-restore", kind="code", style="posix"),
    "julia": P("c :*", "-q -t= --project=? --threads= --version", kind="code", style="posix"),
    "lua": P("c :*", "-v", kind="code", style="posix"),
    **dict.fromkeys(("tsx", "ts-node"), P("c :*", "-T --version --transpile-only --esm", kind="code", style="posix")),
    **dict.fromkeys(("bash", "sh"), P("c :*", "-eunxv --version --posix --norc --noprofile", kind="code",
        style="posix")),
}  # fmt: skip

PROGRAMS: Mapping[str, P] = {**BASIC, "git": GIT, **TOOLS, **SERVICES}
