"""Programs of developers that are known, as data: they run what is in the workspace, or reach the network.

None of them is harmless while untrusted content steers; known here means that an owner who allows commands in general
is not asked for each of them. What downloads and runs a program by name (`npx NAME`, `uvx`, `pipx run`), runs code from
the command line (`node -e`), or changes something elsewhere (`gh pr create`, `docker run`) is left out.
"""

from collections.abc import Mapping

from shoal.permissions.options import Program as P  # noqa: N817


def _code(operands: str, options: str, check: str = "", *, free: bool = False) -> P:
    return P(operands, options, kind="code", check=check, free=free)


def _outside(options: str = "", operands: str = ":*") -> P:
    return P(operands, options, kind="outside")


_RUN = P(options="-q --quiet --frozen --locked --no-sync --offline", style="posix", rest=True, kind="code")

_PYTEST = _code(
    "c*",
    "-qvsxlh -k= -m= -n= -r= -p= -c=c -o= -W= --quiet --verbose --exitfirst --maxfail= --lf --last-failed --ff --sw"
    " --failed-first --stepwise --tb= --durations= --durations-min= --cov=? --cov-report= --cov-config=c --cov-append"
    " --no-cov --cov-branch --cov-fail-under= --collect-only --co --no-header --no-summary --disable-warnings"
    " --color= --capture= --dist= --timeout= --showlocals --pdb --version --help --markers --fixtures --ignore="
    " --ignore-glob= --deselect= --junitxml=w --junit-xml=w --rootdir= --strict-markers --strict-config"
    " --import-mode= --numprocesses= --cache-clear --benchmark-only --benchmark-skip --runslow --reruns="
    " --asyncio-mode= --doctest-modules --full-trace --snapshot-update --last-failed-no-failures= --new-first --nf"
    " --setup-show --keyword= --reruns-delay= --forked --random-order --hypothesis-seed= --hypothesis-profile="
    " --hypothesis-show-statistics -x",
    "conftest.py",
)
_RUFF = (
    " -qvsn --fix --no-fix --unsafe-fixes --show-fixes --diff --select= --ignore= --extend-select= --exclude="
    " --config=c --output-format= --statistics --check --line-length= --target-version= --no-cache --exit-zero"
    " --quiet --watch --preview --show-files --show-settings --extend-ignore= --force-exclude --isolated --add-noqa"
    " --ignore-noqa"
)
_MYPY = _code(
    "c*",
    "-v -p= -m= --strict --ignore-missing-imports --show-error-codes --no-error-summary --config-file=c --pretty"
    " --python-version= --no-incremental --install-types --non-interactive --follow-imports= --exclude= --version"
    " --disallow-untyped-defs --check-untyped-defs --no-color-output --warn-unused-ignores --explicit-package-bases"
    " --namespace-packages --cache-dir= --package= --module= --no-strict-optional --hide-error-context",
    "pyproject.toml",
)
_PIP = P(options="-qv --quiet --verbose --disable-pip-version-check --no-input --version", kind="code", check="", subs={
    "install": _code(":*", "-qUvI -r=c -c=c -e=c --quiet --upgrade --verbose --requirement=c --constraint=c"
        " --editable=c --user --no-deps --no-cache-dir --pre --dry-run --break-system-packages --force-reinstall"
        " --ignore-installed --no-build-isolation --disable-pip-version-check --target= -t= --prefer-binary"
        " --only-binary= --no-binary= --root-user-action= --progress-bar= --timeout= --upgrade-strategy= --no-input"
        " --ignore-requires-python --group= --no-warn-script-location --retries= --system"),
    "uninstall": _code(":*", "-yq -r=c --yes --quiet --break-system-packages"),
    "download": _code(":*", "-q -d= -r=c --no-deps --dest="),
    "wheel": _code(":*", "-w= --no-deps --wheel-dir="),
    **dict.fromkeys(("list", "show", "freeze", "check", "index", "debug", "inspect", "cache", "help"),
                    _outside("-oufl --outdated --uptodate --format= --files --local --user --not-required --verbose")),
})  # fmt: skip
_NPM_INSTALL = _code(
    ":*",
    "-DEgPOf --save --save-dev --save-exact --save-optional --save-peer --no-save --global --production --omit="
    " --include= --legacy-peer-deps --force --ignore-scripts --no-audit --no-fund --no-optional --prefer-offline"
    " --offline --silent --quiet --verbose --frozen-lockfile --no-frozen-lockfile --prod --dev --exact --workspace="
    " -w= --workspaces --no-package-lock --package-lock-only --dry-run --loglevel= --no-progress --progress="
    " --shamefully-hoist --peer --audit= --fund= --yes --immutable --workspace-root --recursive -r --no-lockfile"
    " --ignore-engines",
    "package.json",
)
_NPM_RUN = _code(":*", "-swr --silent --if-present --workspace= --workspaces --quiet --ignore-scripts"
    " --include-workspace-root --filter= --recursive --parallel --watch -F=", "package.json", free=True)  # fmt: skip
_NPM_LOOK = _code(":*", "-agl --all --depth= --json --long --global --prod --dev --omit= --parseable --link"
    " --workspaces -w= --workspace= --recursive -r --pattern= --silent --audit-level= --production --fix --level=",
    "package.json")  # fmt: skip
_NPM_SCRIPTS = dict.fromkeys(("run", "run-script", "test", "t", "start", "stop", "restart", "build", "lint", "dev",
    "tst"),
                             _NPM_RUN)  # fmt: skip
_NODE_TOOL = (
    "-pvwqsuyf -t= --project= --noEmit --watch --build --pretty --version --help --fix --ext= --quiet --cache"
    " --max-warnings= --write --check --list-different --run --coverage --ci --silent --verbose --reporter="
    " --runInBand --testPathPattern= --testNamePattern= --bail --no-coverage --passWithNoTests --maxWorkers="
    " --updateSnapshot --detectOpenHandles --skipLibCheck --strict --outDir= --target= --module= --incremental"
    " --listFiles --showConfig --esModuleInterop --jsx= --declaration --no-color --color -i -o= --ignore-path=c"
    " --ignore-pattern= --report-unused-disable-directives --changed --related --ui --grep= -g= --headed --workers="
    " --retries= --timeout= --bail= --mode= --port= --host= --single-quote --loglevel="
)
_TSC = _code("c*", _NODE_TOOL)
_NODE_TOOLS: Mapping[str, P] = dict.fromkeys(
    ("tsc", "eslint", "prettier", "jest", "vitest", "mocha", "playwright", "vite", "next", "webpack", "rollup",
        "esbuild",
     "biome", "stylelint", "svelte-check", "vue-tsc", "tsup", "ava", "madge",
     "nest",
     "astro", "ng", "tailwindcss", "swc", "cypress"), _TSC)  # fmt: skip

_CARGO = (
    "-qvr --release --all --workspace --all-targets --all-features --no-default-features --features= -F= --lib --bins"
    " --bin= --example= --examples --test= --tests --bench= --benches --package= -p= --exclude= --target= --jobs= -j="
    " --quiet --verbose --locked --frozen --offline --no-run --no-fail-fast --doc --message-format= --profile="
    " --keep-going --manifest-path=c --color= --fix --allow-dirty --allow-staged --check --no-deps --open --dry-run"
    " --target-dir="
)
_GO = (
    "-v -x -race -cover -short -a -n -json -run= -count= -timeout= -tags= -bench= -benchmem -benchtime= -cpu="
    " -parallel= -coverprofile=w -covermode= -coverpkg= -failfast -o=w -mod= -ldflags=n -trimpath -m -u -f= -d -t -p="
    " -shuffle= -list= -fuzz= -fuzztime= -vet=n -deps -test -e -compiled -find -C=d -c -buildvcs= -modfile=c"
)


def _go(operands: str = ":*") -> P:
    return P(operands, _GO, kind="code", style="words")


_COMPILER = P(
    "r*",
    "-o=w -c -S -E -g -g1 -g2 -g3 -O -O0 -O1 -O2 -O3 -Os -Og -Oz -w -v -pthread -shared -static -fPIC -fpic -fPIE"
    " -pie -std= -I= -L= -D= -U= -l= -x= -m32 -m64 -march= -mtune= -pipe -pedantic -pedantic-errors -ansi -P -M -MM"
    " -MD -MMD -MP -MF=w -MT= -MQ= -isystem= -include= -framework= -fsyntax-only -fno-exceptions -fno-rtti -fopenmp"
    " -rdynamic -Wall -Wextra -Werror -Wpedantic -Wshadow -Wconversion -Wno-unused -Wno-unused-parameter"
    " -Wno-unused-variable -Wformat -Wno-deprecated-declarations -fsanitize= -fno-omit-frame-pointer -lm -lpthread"
    " -ldl -lrt -lz -lstdc++ -ggdb -fno-stack-protector -fstack-protector -D_GNU_SOURCE -DNDEBUG -flto -ffast-math"
    " -funroll-loops -nostdlib -Wno-unused-function -Wno-unused-result -Wunused -Wuninitialized --version"
    " -dumpversion -dumpmachine -print-sysroot",
    kind="code", style="compiler",
)  # fmt: skip

TOOLS: Mapping[str, P] = {
    # ---- Python ----
    **dict.fromkeys(("pytest", "py.test"), _PYTEST),
    "ruff": P(kind="code", options="--version", subs={"check": _code("c*", _RUFF.strip(), "pyproject.toml"),
    "format": _code(
        "c*", _RUFF.strip(), "pyproject.toml"), "rule": _outside("--all"), "version": _outside()}),
    "black": _code("c*", "-qv -l= -t= -S --check --diff --quiet --verbose --line-length= --target-version= --config=c"
        " --exclude= --fast --version --skip-string-normalization --color", "pyproject.toml"),
    "isort": _code("c*", "-cqv -l= --check --check-only --diff --profile= --line-length= --quiet --version --skip=",
                   "pyproject.toml"),
    "flake8": _code("c*", "-qv -j= --max-line-length= --select= --ignore= --extend-ignore= --exclude= --count"
        " --statistics --show-source --max-complexity= --exit-zero --version --format=", "setup.cfg"),
    "pylint": _code("c*", "-E -j= --disable= --enable= --errors-only --output-format= --score= --reports= --version"
        " --max-line-length= --fail-under= --ignore= --jobs=", "pyproject.toml"),
    "mypy": _MYPY,
    **dict.fromkeys(("pyright", "basedpyright"), _code("c*", "-p= --project= --outputjson --stats --verbose --version"
        " --level= --warnings --pythonversion= --threads=?",
                                                       "pyproject.toml")),
    **dict.fromkeys(("tox", "nox"), _code(":*", "-qvrlp -e= -s= -c=c --session= --recreate --list --parallel"
        " --skip-pkg-install -k= --reuse-existing-virtualenvs", "tox.ini")),
    "coverage": P(options="--version", kind="code", subs={
        "report": _code(":*", "-mi --show-missing --include= --omit= --skip-covered --fail-under= --sort= --format=",
        ""),
        **dict.fromkeys(("html", "xml", "json", "erase", "combine", "lcov"), _code(":*", "-d= -o=w -q -a --keep"
            " --quiet", "")),
    }),
    "pre-commit": P(kind="code", options="--version", subs={"run": _code(
        ":*", "-av --all-files --files --show-diff-on-failure --hook-stage= --verbose --from-ref= --to-ref="),
        "install": _code(":*", "-t= --hook-type= --install-hooks"), "autoupdate": _code("", "")}),
    "pip-compile": _code("c*", "-qvU -o=w --upgrade --output-file=w --generate-hashes --resolver= --extra="
        " --strip-extras"),
    "bandit": _code("r*", "-rqliv -c=c -ll -f= -o=w -x= -s= --recursive --severity-level= --format="),
    "vulture": _code("c*", "--min-confidence= --exclude="),
    **dict.fromkeys(("pip", "pip3"), _PIP),
    "virtualenv": _code(":*", "-p=n -q --python=n --clear --system-site-packages"),
    "alembic": P(kind="code", options="-c=c -x= --config=c", subs=dict.fromkeys(
        ("upgrade", "downgrade", "current", "history", "heads", "revision", "check", "show", "branches", "stamp"),
        _code(":*", "-v -m= --autogenerate --message= --sql --verbose --rev-id= -r="))),
    "uv": P(kind="code", options="-qv --quiet --verbose --version --no-cache --offline --directory=d --project=", subs={
        "run": P(options="-q -p=n --quiet --frozen --locked --no-sync --offline --python=n --extra= --all-extras"
            " --group= --dev --no-dev --isolated --no-project --package= --all-packages --active", style="posix",
            rest=True,
                 kind="code"),
        "pip": _PIP,
        "sync": _code("", "-qUv --frozen --locked --dev --no-dev --all-extras --extra= --group= --all-groups"
            " --upgrade --no-install-project --python=n --quiet --all-packages --active --inexact", "pyproject.toml"),
        "lock": _code("", "-q -U -P= --upgrade --check --upgrade-package=", "pyproject.toml"),
        "venv": _code(":*", "-p=n -q --python=n --seed --clear --quiet"),
        "add": _code(":*", "--dev --group= --optional= --frozen --editable", "pyproject.toml"),
        "remove": _code(":*", "--dev --group= --optional= --frozen", "pyproject.toml"),
        "init": _code(":*", "--lib --app --package --name= --python=n --bare --no-readme --vcs="),
        "build": _code(":*", "-o= --wheel --sdist --out-dir= --quiet", "pyproject.toml"),
        "tree": _code(":*", "-d= --depth= --outdated --invert --package=", "pyproject.toml"),
        "python": P(kind="code", subs=dict.fromkeys(("list", "find", "install", "pin", "dir"),
        _outside("--only-installed"))),
        "version": _outside("--short --bump="), "cache": _outside(), "export": _code(
            ":*", "-o= --no-hashes --format=", "pyproject.toml"),
    }),
    "poetry": P(kind="code", options="-qvn --no-interaction --version -n", subs={
        "run": _RUN, "install": _code("", "-q --no-root --sync --with= --without= --only= --no-dev --all-extras -E="
            " --extras= --no-interaction --no-ansi", "pyproject.toml"),
        **dict.fromkeys(("add", "remove", "update", "lock"), _code(
            ":*", "-D -G= -E= --dev --group= --no-update --dry-run --lock --optional --no-interaction --regenerate",
            "pyproject.toml")),
        **dict.fromkeys(("show", "check", "version", "about", "search"), _outside("-tol --tree --outdated --latest"
            " --top-level")),
        "env": P(kind="outside", subs=dict.fromkeys(("info", "list", "use"), _outside("-p --path --full-path"))),
        "build": _code("", "-f= --format=", "pyproject.toml"), "init": _code("", "-n --name= --no-interaction"
            " --python=n"),
        "new": _code(":*", "--name= --src"),
    }),
    "python3 -m": P(kind="code", options="-m", subs={
        "pytest": _PYTEST, "pip": _PIP, "mypy": _MYPY,
        "unittest": P("c*", "-v -q -f -b -c -k= -s= -p= -t= --verbose --failfast --buffer --quiet --locals --catch"
            " --start-directory= --pattern= --top-level-directory=", kind="code", subs={}),
        "venv": _code(":*", "--system-site-packages --clear --upgrade --without-pip --upgrade-deps --prompt="),
        "json.tool": _code("c*", "--sort-keys --indent= --compact --no-ensure-ascii --json-lines --tab --no-indent"),
        "py_compile": _code("c*", "-q"), "compileall": _code("c*", "-qfl -x= -j= --invalidation-mode="),
        "build": _code("c*", "-wsn -o= --wheel --sdist --no-isolation --outdir="), "timeit": _code(":*", "-v -n= -r="
            " -u="),
        "site": _code("", "--user-site --user-base"), "sysconfig": _code("", ""), "platform": _code("", ""),
        "tabnanny": _code("c*", "-v -q"), "cProfile": _code("c :*", "-s= -o="),
    }),
    "uvicorn": _code(":*", "--port= --host= --reload --workers= --log-level= --app-dir=d --factory --lifespan="
        " --version"),
    "gunicorn": _code(":*", "-w= -b= -k= -t= --bind= --workers= --worker-class= --reload --timeout= --version"),
    "celery": _code(":*", "-A= -l= -c= -Q= -B -P= --app= --loglevel= --concurrency= --pool= --version", free=True),
    "flask": P(kind="code", options="--app= --debug -A= --version", subs=dict.fromkeys(
        ("run", "db", "routes"), _code(":*", "-p= -h= -m= --port= --host= --debug --reload --no-reload --message="))),
    "django-admin": _code(":*", "--version --template="),
    "mkdocs": P(kind="code", options="--version -q -v", subs=dict.fromkeys(("build", "serve", "new"), _code(
        ":*", "-d= -f=c -a= -q --strict --site-dir= --clean --dev-addr= --config-file=c"))),
    "sphinx-build": _code(":*", "-b= -d= -W -n -q -j= -E -a -M="),
    # ---- JavaScript ----
    "npm": P(kind="code", options="-s --silent --prefix=d --version -v -C=d --no-color --quiet -q --workspace= -w="
        " --workspaces",
             subs={
        **_NPM_SCRIPTS,
        **dict.fromkeys(("install", "i", "ci", "add", "clean-install", "install-ci-test"), _NPM_INSTALL),
        **dict.fromkeys(("uninstall", "remove", "rm", "un", "update", "up", "upgrade", "dedupe", "prune", "rebuild",
            "link",
                         "pack"), _NPM_INSTALL),
        **dict.fromkeys(("ls", "list", "ll", "la", "outdated", "view", "info", "show", "audit", "why", "explain",
            "root",
                         "prefix", "bin", "version", "help", "doctor", "fund", "search", "ping", "query"), _NPM_LOOK),
        "config": P(kind="outside", subs=dict.fromkeys(("get", "list", "ls"), _outside("--json -l"))),
        "pkg": P(kind="outside", subs={"get": _outside()}),
        "init": _code("", "-yf --yes --force --scope="), "cache": P(kind="outside", subs=dict.fromkeys(
            ("verify", "clean", "ls"), _outside("--force"))),
    }),
    **dict.fromkeys(("pnpm", "yarn", "bun"), P(
        kind="code", options="-r -s -v -F= --silent --version --recursive --filter= -C=d --dir=d --cwd=d", subs={
            **_NPM_SCRIPTS,
            **dict.fromkeys(("install", "i", "add", "remove", "update", "upgrade", "up", "dedupe", "prune", "rm",
                "link",
                             "unlink", "import", "rebuild"), _NPM_INSTALL),
            **dict.fromkeys(("ls", "list", "outdated", "why", "info", "audit", "root", "bin", "version", "workspaces",
                             "store", "pm", "licenses", "versions"), _NPM_LOOK),
            **dict.fromkeys(("typecheck", "format", "check", "e2e", "coverage", "preview", "clean"), _NPM_RUN),
            **_NODE_TOOLS, "init": _code("", "-yp --yes --private"),
        })),
    **_NODE_TOOLS,
    "npx": P(kind="code", options="-yq --yes --no-install --no --quiet", subs=_NODE_TOOLS),
    "deno": P(kind="code", options="--version -V", subs={
        **dict.fromkeys(("test", "lint", "fmt", "check", "bench", "doc", "info"), _code(
            "c*", "-qcA --quiet --check --allow-read --allow-env --allow-net --allow-all --filter= --coverage=?"
                " --no-check",
            "")), "task": _code(":*", "-q --quiet"), }),
    # ---- other languages ----
    "cargo": P(kind="code", options="-qvV --version --list --locked --offline --frozen --color= -C=d --quiet"
        " --verbose", subs={
        **dict.fromkeys(("build", "b", "check", "c", "test", "t", "clippy", "doc", "bench", "fix", "run", "r",
            "nextest"),
                        _code(":*", _CARGO, "Cargo.toml")),
        "fmt": _code(":*", "-q -v -p= --all --check --package=", "Cargo.toml"),
        **dict.fromkeys(("add", "remove", "update", "fetch", "generate-lockfile", "vendor"), _code(
            ":*", "-q -v -F= -p= --features= --dev --build --no-default-features --optional --package= --dry-run"
                " --precise= --locked --offline", "Cargo.toml")),
        **dict.fromkeys(("tree", "metadata", "pkgid", "search", "locate-project", "version", "info"), _code(
            ":*", "-i= -e= -d= -p= --depth= --invert= --edges= --duplicates --format-version= --no-deps --all-features"
            " --features= --limit= --prefix= --manifest-path= --filter-platform=")),
        "clean": _code("", "-p= -r -v --release --doc --package=", ""),
        "new": _code(":*", "--lib --bin --name= --edition= --vcs="), "init": _code(":*", "--lib --bin --name="
            " --edition= --vcs="),
    }),
    "rustc": P("c*", "-O -V -o=w --edition= --crate-type= --version --test --explain= --print= -g", kind="code"),
    "rustfmt": _code("c*", "--check --edition= --config=c -q -v"),
    "rustup": P(kind="outside", options="--version", subs=dict.fromkeys(("show", "toolchain", "component", "target",
    "update",
                                                                       "default", "check", "which"), _code(":*", ""))),
    "go": P(kind="code", subs={
        **dict.fromkeys(("build", "test", "vet", "fmt", "get", "mod", "list", "doc", "clean", "install",
            "generate",
                         "work", "fix"), _go()),
        "run": P(":*", _GO, kind="code", style="words", check="go run"),
        "version": _outside("-m"), "env": P(":*", "-json", kind="code", style="words"),
    }),
    **dict.fromkeys(("gofmt", "goimports"), P("c*", "-l -w -d -s -e -r=", kind="code", style="words")),
    "golangci-lint": P(kind="code", options="--version", subs={"run": _code(
        "c*", "-c=c -E= -D= -v --fix --timeout= --config=c --enable= --disable= --new --new-from-rev= --fast"
            " --out-format=")}),
    "staticcheck": _code(":*", ""),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++"), _COMPILER),
    **dict.fromkeys(("make",), P(":*", "-j=? -l=? -k -B -n -s -i -q -w -f=c -C=d --file=c --makefile=c --directory=d"
        " --jobs=? --silent --quiet --keep-going --dry-run --just-print --always-make --version --no-print-directory"
        " --help --output-sync=? --question",
                                 kind="code", check="make")),
    "cmake": P("d*", "-S=d -B=d -G= -D= -DCMAKE_BUILD_TYPE= -DCMAKE_INSTALL_PREFIX= -DCMAKE_EXPORT_COMPILE_COMMANDS="
        " -j= -DBUILD_TESTING= -DBUILD_SHARED_LIBS= -DCMAKE_CXX_STANDARD= -DCMAKE_POSITION_INDEPENDENT_CODE= --build="
        " --config= --target= --parallel= --install= --preset= --version -L -LA -N --verbose --clean-first --fresh",
               kind="code", style="compiler", check="cmake"),
    "ctest": _code("", "-VQN -j=? -R= -E= -L= --test-dir= --output-on-failure --verbose --build-config= -C="
        " --rerun-failed --parallel=? --timeout= --preset= --repeat="),
    "ninja": _code(":*", "-vn -C=d -j= -t= -f=c --version"),
    "meson": P(kind="code", options="--version", subs=dict.fromkeys(("setup", "compile", "test", "configure",
    "install"), _code(
        ":*", "-v -C=d -D= -j= --buildtype= --prefix= --reconfigure --wipe --print-errorlogs --suite="))),
    "just": _code(":*", "-lnv -f=c -d=d --list --dry-run --summary --show= --version", "Justfile"),
    **dict.fromkeys(("mvn", "mvnw"), P(":*", "-q -B -e -X -o -U -T= -pl= -am -ntp -DskipTests -Dtest= -f=c -P="
        " --version -v --batch-mode --quiet --no-transfer-progress --offline", kind="code",
                                       style="words",
                                       check="pom.xml")),
    "gradle": P(":*", "-q -i -s -x= -p=d --info --stacktrace --no-daemon --tests= --console= --build-cache --offline"
        " --version --quiet --continue --parallel --warning-mode= --rerun-tasks", kind="code", style="words",
                check="build.gradle"),
    "javac": P("c*", "-d= -cp= -classpath= -sourcepath= -source= -target= --release= -Xlint -Xlint:all -g -version"
        " --version -encoding=", kind="code", style="words"),
    "java": P("c :*", "-jar=c -cp= -classpath= -version --version -Xmx512m -Xmx1g -Xmx2g -Xmx4g -Xms512m -ea"
        " --enable-preview --source=", kind="code", style="words"),
    "dotnet": P(kind="code", options="--version --info --list-sdks --list-runtimes", subs=dict.fromkeys(
        ("build", "test", "restore", "run", "clean", "format", "list", "new", "add", "sln"), _code(
            ":*", "-c= -f= -o= -v= -p= --configuration= --framework= --no-restore --no-build --verbosity= --filter="
                " --logger= --project= --output= --nologo --verify-no-changes --collect= --name= -n="))),
    "bundle": P(kind="code", options="--version", subs={"exec": _RUN, "install": _code(
        "", "-j= --quiet --jobs= --path= --without= --deployment --local --retry="), "check": _code("", ""),
        "update": _code(
        ":*", "--conservative --patch --minor"), **dict.fromkeys(
            ("list", "outdated", "show"), _code(":*", "", "Gemfile"))}),
    "rake": _code(":*", "-T -A -P -n -q -j=n --tasks --all --quiet --dry-run --version", "Rakefile"),
    **dict.fromkeys(("rspec", "rubocop"), _code(
        "c*", "-a -A -f= -e= -b -c -o=w --format= --fail-fast --only-failures --tag= --autocorrect --auto-correct"
            " --version --color --seed= --order= --only= --parallel --backtrace --display-cop-names", "Rakefile")),
    "rails": P(kind="code", options="--version", subs=dict.fromkeys(
        ("test", "server", "routes", "db:migrate", "db:seed", "db:rollback", "db:create", "db:setup", "generate", "g",
            "s",
         "assets:precompile", "spec"), _code(":*", "-p= -b= -e= -c= --port= --environment= --skip-test", "Rakefile"))),
    "gem": P(kind="outside", options="--version -v", subs=dict.fromkeys(("list", "search", "info", "env", "which",
    "outdated"),
                                                                      _outside("-lr --local --remote"))),
    "composer": P(kind="code", options="-nqV --no-interaction --version --no-ansi -d=d", subs={
        **dict.fromkeys(("install", "update", "require", "remove", "dump-autoload", "validate", "run-script", "test"),
            _code(
            ":*", "-nqow --no-dev --dev --prefer-dist --no-scripts --no-progress --optimize-autoloader"
                " --with-all-dependencies --ignore-platform-reqs --strict --no-interaction --dry-run")),
        **dict.fromkeys(("show", "outdated", "licenses", "why", "diagnose"), _code(":*", "-tDi --tree --direct"
            " --installed")),
    }),
    "phpunit": _code("c*", "-c=c --filter= --testsuite= --coverage-text --configuration=c --stop-on-failure --testdox"
        " --colors=?"),
    "swift": P(kind="code", options="--version", subs=dict.fromkeys(("build", "test", "run", "package"), _code(
        ":*", "-c= -v --configuration= --filter= --product= --target="))),
    "mix": P(kind="code", options="--version", subs=dict.fromkeys(
        ("test", "compile", "deps.get", "format", "credo", "dialyzer", "ecto.migrate", "ecto.create", "phx.server",
            "deps.compile"),
        _code(":*", "--force --warnings-as-errors --check-formatted --only= --trace --cover --strict"))),
    "shellcheck": P("r*", "-ax -s= -S= -e= -f= -o= --shell= --severity= --exclude= --format= --external-sources"
        " --version",
                    kind="outside"),
    "shfmt": P("c*", "-d -l -w -s -i= -ci -bn -ln=", kind="code", style="words"),
    "hadolint": P("r*", "--ignore= --format= --config=c", kind="outside"),
    "yamllint": P("c*", "-s -d= -f= -c=c --strict --format=", kind="code"),
    "markdownlint": P("c*", "-f --fix -c=c --config=c --ignore=", kind="code"),
    "tokei": P("r*", "-f -e= -s= --files --exclude= --sort=", kind="outside"),
    "cloc": P("r*", "--by-file --exclude-dir= --include-lang= --json --quiet --exclude-ext=", kind="outside"),
    "bat": P("r*", "-pnA -l= -r= --plain --number --show-all --language= --line-range= --style= --paging= --color=",
             kind="outside", startup="~/.config/bat/config"),
    "pandoc": P("r*", "-s -o=w -f=c -t=c -V= -M= --standalone --toc --from=c --to=c --output=w --metadata= --wrap="
        " --number-sections --variable= --columns=", kind="outside"),
    "openssl": P(kind="outside", subs=dict.fromkeys(("sha1", "sha256", "sha512", "md5", "dgst", "x509", "rand",
    "version", "base64"),
                 P(":*", "-in=r -out=w -noout -text -subject -issuer -dates -enddate -fingerprint -hex -r -sha256"
                     " -sha512 -md5 -base64 -d -e -A -a -checkend= -ext=", kind="outside", style="words"))),
    "gs": P("r*", "-q -dNOPAUSE -dBATCH -dQUIET -dSAFER -sDEVICE=n", kind="outside", style="words", check="gs"),
    **dict.fromkeys(("pdftotext", "pdfinfo"), P(":*", "-layout -raw -f= -l= -enc= -nopgbrk -htmlmeta -meta",
        kind="outside",
                                               style="words")),
    **dict.fromkeys(("flutter", "dart"), P(kind="code", options="--version", subs=dict.fromkeys(
        ("test", "analyze", "format", "pub", "doctor", "compile", "fix", "devices", "clean"), _code(
            ":*", "-o= --coverage --no-pub --set-exit-if-changed --name= --plain-name= --fatal-infos --apply"
                " --dry-run")))),
}  # fmt: skip
