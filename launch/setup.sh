# shellcheck shell=bash
# What launch/quickstart and tests/all share: numbered steps with a log each, and the set-up of a fresh machine.
# Sourced, never run. The caller sets `set -u` and calls `begin` first.
#
# Nothing is written outside the clone but apt packages (and what cargo keeps in its own cache).

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
LOG_DIR=
STEP=0
STEPS=0
PASSED=0
FAILED=0
SKIPPED=0
FAILED_TITLES=()
TICKER=
START_SECONDS=$SECONDS
# On a fresh machine its own updates often hold apt's lock, and a mirror may refuse once.
APT_GET=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5)

# begin NAME STEPS: names the directory of the logs and the number of steps to come.
begin() {
    LOG_DIR=$ROOT/target/logs/$1
    STEPS=$2
    mkdir -p "$LOG_DIR" || die "The clone cannot be written to: $ROOT"
    rm -f "$LOG_DIR"/*.log
    trap 'stop_ticker; exit 130' INT TERM
    trap stop_ticker EXIT
}

stop_ticker() {
    if [ -n "$TICKER" ]; then
        kill "$TICKER" 2>/dev/null
        wait "$TICKER" 2>/dev/null
        TICKER=
    fi
}

# On a terminal the current step shows its seconds, so that a long build does not look like a hang.
start_ticker() {
    [ -t 1 ] || return 0
    local line=$1
    (
        trap - INT TERM EXIT
        s=0
        while sleep 1; do
            s=$((s + 1))
            printf '\r%s %d s ' "$line" "$s"
        done
    ) &
    TICKER=$!
}

# step TITLE COMMAND...: runs the command with its output in a log; prints one line; on failure shows the log's end.
# The last line that the command writes to file descriptor 3 is appended to the step's line.
step() {
    local title=$1 log line status began=$SECONDS note
    shift
    STEP=$((STEP + 1))
    log=$LOG_DIR/$(printf '%02d' "$STEP")-$(printf '%s' "$title" | tr -cs 'A-Za-z0-9' '-' | cut -c1-40).log
    line=$(printf '[%2d/%d] %s …' "$STEP" "$STEPS" "$title")
    printf '%s ' "$line"
    start_ticker "$line"
    "$@" >"$log" 2>&1 3>"$log.note" </dev/null
    status=$?
    stop_ticker
    [ -t 1 ] && printf '\r\033[K%s ' "$line"
    note=$(tail -n 1 "$log.note")
    rm -f "$log.note"
    if [ "$status" -eq 0 ]; then
        PASSED=$((PASSED + 1))
        printf 'ok, %d s%s\n' "$((SECONDS - began))" "${note:+ ($note)}"
    else
        FAILED=$((FAILED + 1))
        FAILED_TITLES+=("$title")
        printf 'FAILED, %d s%s\n' "$((SECONDS - began))" "${note:+ ($note)}"
        printf '    the end of %s:\n' "${log#"$ROOT"/}"
        tail -n 40 "$log" | sed 's/^/    | /'
    fi
    LAST_LOG=$log
    return "$status"
}

# skip TITLE WHY: a step that cannot run here, said aloud.
skip() {
    STEP=$((STEP + 1))
    SKIPPED=$((SKIPPED + 1))
    printf '[%2d/%d] %s … skipped: %s\n' "$STEP" "$STEPS" "$1" "$2"
}

# die MESSAGE...: one sentence a line, to stderr.
die() {
    printf '\n' >&2
    printf '%s\n' "$@" >&2
    exit 1
}

elapsed() {
    printf '%d s' "$((SECONDS - START_SECONDS))"
}

# ---------------------------------------------------------------------------------------------------------------------
# Rust

check_rust() {
    local wanted found
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
        export PATH
    fi
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n 1)
    found=$(cd "$ROOT" && rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
    if [ -z "$found" ]; then
        die "Rust is missing. Install it from https://rustup.rs and start this again:" \
            "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
    fi
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        die "Rust $found is too old, $wanted or newer is needed: rustup update stable"
    fi
}

# Downloads every crate of Cargo.lock that this machine needs, so that only this step needs the network.
fetch_crates() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    if ! (cd "$ROOT" && CARGO_NET_RETRY=${CARGO_NET_RETRY:-10} cargo fetch --locked --target "$host"); then
        echo "The crates of Cargo.lock could not be downloaded. Is there a network, and a proxy to set (https_proxy)?"
        return 1
    fi
}

# ---------------------------------------------------------------------------------------------------------------------
# System packages

have_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    # bindgen needs the library and, beside it, the compiler's own headers (stddef.h).
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || compgen -G '/usr/lib*/libclang.so*' >/dev/null ||
        compgen -G '/usr/local/lib/libclang.so*' >/dev/null || return 1
    compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null ||
        compgen -G '/usr/lib*/clang/*/include/stddef.h' >/dev/null ||
        compgen -G '/usr/local/lib/clang/*/include/stddef.h' >/dev/null
}

# The first Python 3 that can make a virtual environment.
pick_python() {
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "$python"
            return 0
        fi
    done
    return 1
}

# The release of libclang that this distribution calls its default: 14 on Debian 12 and Ubuntu 22.04, 18 on Ubuntu 24.04,
# 19 on Debian 13. The two packages are a third of what libclang-dev brings.
libclang_packages() {
    local major
    major=$(apt-cache depends libclang-dev 2>/dev/null | sed -n 's/.*Depends: libclang-\([0-9]*\)-dev.*/\1/p' | head -n 1)
    if [ -n "$major" ] && apt-cache show "libclang1-$major" "libclang-common-$major-dev" >/dev/null 2>&1; then
        echo "libclang1-$major libclang-common-$major-dev"
    else
        echo "libclang-dev"
    fi
}

# missing_packages: prints what is missing, one word a line: compiler, mpi, libclang, python.
missing_packages() {
    command -v cc >/dev/null || echo compiler
    { command -v mpirun && command -v mpicc; } >/dev/null || echo mpi
    have_libclang || echo libclang
    pick_python >/dev/null || echo python
}

# packages_for WORD...: the apt packages behind the words of missing_packages.
packages_for() {
    local word
    for word in "$@"; do
        case $word in
        compiler) echo "gcc libc6-dev" ;;
        mpi) echo "openmpi-bin libopenmpi-dev" ;;
        libclang) libclang_packages ;;
        python) echo "python3 python3-venv" ;;
        esac
    done | tr '\n' ' ' | sed 's/ $//'
}

# apt_install WORD...: installs the packages behind the words.
apt_install() {
    local packages
    # First the lists: a fresh image has none, and the name of libclang's packages is in them. An update that fails in
    # one foreign repository is no reason to stop: the installation says what matters.
    $SUDO "${APT_GET[@]}" update
    read -r -a packages <<<"$(packages_for "$@")"
    echo "installs ${packages[*]}" | tee /dev/fd/3
    if ! $SUDO env DEBIAN_FRONTEND=noninteractive "${APT_GET[@]}" install -y --no-install-recommends "${packages[@]}"; then
        echo "apt-get could not install: ${packages[*]}"
        echo "Is there a network? Is another apt running? The lines above say why."
        return 1
    fi
}

# Finds out what is missing, and installs it or says exactly what to install.
setup_system() {
    local missing packages
    mapfile -t missing < <(missing_packages)
    if [ "${#missing[@]}" -eq 0 ]; then
        step "System packages" found_system_packages
        return
    fi
    if ! command -v apt-get >/dev/null; then
        die "Missing: ${missing[*]}, and this is not a Debian or Ubuntu system that could be set up by apt-get." \
            "Install a C compiler, Open MPI with its headers, libclang with its headers, and Python 3 with venv;" \
            "then start this again."
    fi
    SUDO=
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; then
            SUDO=sudo
        else
            packages=$(packages_for "${missing[@]}")
            die "Missing: ${missing[*]}. Neither root nor sudo: have somebody run this, then start again:" \
                "  apt-get update && apt-get install -y --no-install-recommends $packages"
        fi
    fi
    step "System packages" apt_install "${missing[@]}" || die "Nothing was built."
    mapfile -t missing < <(missing_packages)
    if [ "${#missing[@]}" -ne 0 ]; then
        die "Still missing after the installation: ${missing[*]}. Log: ${LAST_LOG#"$ROOT"/}"
    fi
}

found_system_packages() {
    mpirun --version | head -n 1 | tee /dev/fd/3
    cc --version | head -n 1
}

# Only tests/all needs a browser, so it is no part of setup_system: what cannot be installed is said and skipped.
browser() {
    local name
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        # Ubuntu's packages of this name are scripts that ask for snap; only one that runs counts.
        if command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

# setup_browser: finds a Chromium or installs it by apt; says what to do where neither is possible.
setup_browser() {
    local sudo=
    if ! browser >/dev/null && command -v apt-get >/dev/null; then
        if [ "$(id -u)" -ne 0 ]; then sudo="sudo -n"; fi
        # shellcheck disable=SC2086  # two words or none
        $sudo "${APT_GET[@]}" update &&
            $sudo env DEBIAN_FRONTEND=noninteractive "${APT_GET[@]}" install -y --no-install-recommends chromium fonts-dejavu-core
    fi
    if ! browser >/dev/null; then
        echo "There is no Chromium, and it could not be installed. Have somebody run this, then start again:"
        echo "  apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core"
        echo "or install Google Chrome, where chromium is a snap."
        return 1
    fi
    "$(browser)" --version | tee /dev/fd/3
}

# ---------------------------------------------------------------------------------------------------------------------
# Python tools (DuckDB and its like)

# setup_python NAME REGEX: makes .venv with those lines of tests/requirements.txt that match, unless they are there.
setup_python() {
    local stamp=$VENV/.rankscope-$1 wanted python
    wanted=$(grep -E "$2" "$ROOT/tests/requirements.txt")
    if "$VENV/bin/python" -c '' 2>/dev/null && [ "$wanted" = "$(cat "$stamp" 2>/dev/null)" ]; then
        echo "already there" >&3
        return 0
    fi
    python=$(pick_python) || return 1
    "$VENV/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$VENV" || return 1
    printf '%s\n' "$wanted" >"$VENV/.wanted"
    if ! "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --retries 10 --timeout 60 \
        --requirement "$VENV/.wanted"; then
        echo "pip could not install the tools above. Is there a network, and a proxy to set (https_proxy)?"
        return 1
    fi
    printf '%s\n' "$wanted" >"$stamp"
}

# ---------------------------------------------------------------------------------------------------------------------
# MPI

# mpi_environment: exports what Open MPI wants to be told here. Prints the exports for the user's own shell.
mpi_environment() {
    if [ "$(id -u)" -eq 0 ]; then
        # mpirun refuses root unless told twice.
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        MPI_EXPORTS="export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    fi
    # A filtered container may forbid reading another process's memory. Open MPI 4 then complains about each attempt; where
    # nothing is filtered, it is the fastest way between ranks.
    if { [ -e /.dockerenv ] || [ -e /run/.containerenv ]; } && grep -q '^Seccomp:.*2' /proc/self/status 2>/dev/null; then
        export OMPI_MCA_btl_vader_single_copy_mechanism=none
        MPI_EXPORTS="${MPI_EXPORTS:-export} OMPI_MCA_btl_vader_single_copy_mechanism=none"
    fi
}
MPI_EXPORTS=

# mpi_run N COMMAND...: N ranks, also where there are fewer cores.
mpi_run() {
    local ranks=$1
    shift
    if mpirun --version 2>/dev/null | grep -qE 'Open ?MPI|OpenRTE'; then
        mpirun --oversubscribe -n "$ranks" "$@"
    else
        # MPICH has no such limit. (It spins when oversubscribed, and is ten times slower.)
        mpirun -n "$ranks" "$@"
    fi
}
