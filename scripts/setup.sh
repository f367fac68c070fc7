# shellcheck shell=bash
# Shared by launch/quickstart, tests/check and tests/all: numbered steps with a log each, and the set-up of a fresh
# machine. Source this file; do not run it. The caller sets `set -u` and calls `begin` first.
#
# Outside the clone, only apt packages and cargo's own cache are written.
#
#   RANKSCOPE_STRICT=1    a skipped step is a failure. Set automatically where CI=true.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
LOG_DIR=
STEP=0
STEPS=0
PASSED=0
FAILED=0
SKIPPED=0
FAILED_TITLES=()
SKIPPED_TITLES=()
# Exit code of a check that cannot run on this machine (automake's convention).
CANNOT_RUN=77
TICKER=
# Seconds after which a step hangs: it is ended and has failed. Empty: no limit.
STEP_LIMIT_S=
# The process groups of the commands that run now, by title.
declare -A RUNNING=()
START_SECONDS=$SECONDS
case ${CI:-} in true | 1) RANKSCOPE_STRICT=${RANKSCOPE_STRICT:-1} ;; esac
RANKSCOPE_STRICT=${RANKSCOPE_STRICT:-}
# On a fresh machine, automatic updates often hold apt's lock, and a mirror may refuse a request.
APT_GET=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5)

# begin NAME STEPS: sets the directory of the logs and the number of steps to come.
begin() {
    LOG_DIR=$ROOT/target/logs/$1
    STEPS=$2
    mkdir -p "$LOG_DIR" || die "The clone cannot be written to: $ROOT"
    rm -f "$LOG_DIR"/*.log
    trap 'stop_all; exit 130' INT TERM
    trap stop_all EXIT
}

stop_all() {
    local group
    stop_ticker
    for group in "${RUNNING[@]}"; do kill -- "-$group" 2>/dev/null; done
}

stop_ticker() {
    if [ -n "$TICKER" ]; then
        kill "$TICKER" 2>/dev/null
        wait "$TICKER" 2>/dev/null
        TICKER=
    fi
}

# On a terminal, shows the seconds of the current step, so that a long build does not look like a hang.
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

# start TITLE COMMAND...: starts a command in a process group of its own, RUNNING[TITLE], which stop_all ends.
start() {
    local title=$1
    shift
    set -m
    "$@" &
    RUNNING[$title]=$!
    set +m
}

# end_late TITLE LOG: after STEP_LIMIT_S, ends the processes of a step. Their last lines stay in the log.
end_late() {
    local group=${RUNNING[$1]}
    sleep "$STEP_LIMIT_S"
    echo "it did not end within $STEP_LIMIT_S s" | tee "$2.late" >>"$2"
    kill -- "-$group"
    sleep 10
    kill -KILL -- "-$group"
}

# wait_for TITLE LOG: waits for the command of a step, and returns its exit code.
wait_for() {
    local status watchdog="the time of $1"
    [ -z "$STEP_LIMIT_S" ] || start "$watchdog" end_late "$1" "$2" >/dev/null 2>&1 </dev/null
    wait "${RUNNING[$1]}"
    status=$?
    if [ -n "$STEP_LIMIT_S" ]; then
        [ -e "$2.late" ] || kill -- "-${RUNNING[$watchdog]}"
        wait "${RUNNING[$watchdog]}" 2>/dev/null
        unset "RUNNING[$watchdog]"
    fi
    unset "RUNNING[$1]"
    return "$status"
}

# step TITLE COMMAND...: runs the command with its output in a log and prints one line. On failure, prints the end of the
# log. The last line that the command writes to file descriptor 3 is appended to the step's line. A command that exits
# with 77 cannot run on this machine: the step is skipped, and the line on descriptor 3 is the reason.
step() {
    local title=$1 log line status began=$SECONDS note
    shift
    STEP=$((STEP + 1))
    log=$LOG_DIR/$(printf '%02d' "$STEP")-$(printf '%s' "$title" | tr -cs 'A-Za-z0-9' '-' | cut -c1-40).log
    line=$(printf '[%2d/%d] %s …' "$STEP" "$STEPS" "$title")
    printf '%s ' "$line"
    start_ticker "$line"
    rm -f "$log.late"
    start "$title" "$@" >"$log" 2>&1 3>"$log.note" </dev/null
    wait_for "$title" "$log"
    status=$?
    stop_ticker
    [ -t 1 ] && printf '\r\033[K%s ' "$line"
    note=$(cat "$log.late" 2>/dev/null || tail -n 1 "$log.note")
    rm -f "$log.note" "$log.late"
    if [ "$status" -eq 0 ]; then
        PASSED=$((PASSED + 1))
        printf 'ok, %d s%s\n' "$((SECONDS - began))" "${note:+ ($note)}"
    elif [ "$status" -eq "$CANNOT_RUN" ]; then
        SKIPPED=$((SKIPPED + 1))
        SKIPPED_TITLES+=("$title")
        printf 'skipped: %s\n' "${note#skipped: }"
    else
        FAILED=$((FAILED + 1))
        FAILED_TITLES+=("$title")
        printf 'FAILED, %d s%s\n' "$((SECONDS - began))" "${note:+ ($note)}"
        failures "$log" | sed 's/^/    | /'
        grep -aE '^test .* FAILED$|^ +(FAIL|TIMEOUT|ABORT|SIG[A-Z]+) \[' "$log" | sort -u | sed 's/^/    /'
        printf '    the end of %s:\n' "${log#"$ROOT"/}"
        tail -n 40 "$log" | sed 's/^/    | /'
    fi
    LAST_LOG=$log
    return "$status"
}

# failures LOG: the messages of the tests that failed. They lie far above the end of a log of many tests. Tests that expect
# a panic print theirs before the list of failures.
failures() {
    local first
    first=$(grep -anm 1 '^failures:$' "$1" | cut -d: -f1)
    tail -n "+${first:-1}" "$1" | grep -aE -A 8 '^thread .* panicked at ' | cut -c1-400 | head -n 60
}

# beside TITLE COMMAND...: starts a command that runs beside the steps that follow. `join_step TITLE` is its step.
beside() {
    local title=$1 log
    shift
    log=$(beside_log "$title")
    rm -f "$log.status"
    : >"$log"
    start "$title beside" run_beside "$log" "$@"
}

run_beside() {
    local log=$1 began=$SECONDS status
    shift
    "$@" >"$log" 2>&1 3>"$log.note" </dev/null
    status=$?
    echo "$((SECONDS - began)) s beside other steps" >"$log.seconds"
    echo "$status" >"$log.status"
}

beside_log() {
    echo "$LOG_DIR/beside-$(printf '%s' "$1" | tr -cs 'A-Za-z0-9' '-' | cut -c1-40)"
}

is_beside() {
    [ -n "${RUNNING[$1 beside]:-}" ]
}

join_step() {
    local status
    step "$1" join_beside "$(beside_log "$1")" "${RUNNING[$1 beside]}"
    status=$?
    # A step that was late leaves its command running.
    kill -- "-${RUNNING[$1 beside]}" 2>/dev/null
    unset "RUNNING[$1 beside]"
    return "$status"
}

# join_beside LOG GROUP: copies the log until the command has ended.
join_beside() {
    local status note
    tail -n +1 -s 0.2 -f --pid "$2" "$1"
    # Without it, the command was killed.
    status=$(cat "$1.status") || return 1
    note=$(tail -n 1 "$1.note")
    [ "$status" -eq "$CANNOT_RUN" ] || note="$(cat "$1.seconds")${note:+; $note}"
    echo "$note" >&3
    rm -f "$1" "$1.note" "$1.seconds" "$1.status"
    return "$status"
}

# skip TITLE WHY: counts and prints a step that cannot run on this machine.
skip() {
    STEP=$((STEP + 1))
    SKIPPED=$((SKIPPED + 1))
    SKIPPED_TITLES+=("$1")
    printf '[%2d/%d] %s … skipped: %s\n' "$STEP" "$STEPS" "$1" "$2"
}

# finish: prints the count of the steps. Fails if a step failed, and in a strict run also if a step was skipped.
finish() {
    echo
    [ "$FAILED" -eq 0 ] || printf 'failed: %s\n' "${FAILED_TITLES[@]}"
    [ "$SKIPPED" -eq 0 ] || printf 'skipped: %s\n' "${SKIPPED_TITLES[@]}"
    echo "steps: $PASSED passed, $FAILED failed, $SKIPPED skipped in $(elapsed); logs in ${LOG_DIR#"$ROOT"/}"
    if [ "$SKIPPED" -gt 0 ] && [ -n "$RANKSCOPE_STRICT" ]; then
        echo "A strict run (RANKSCOPE_STRICT or CI is set) must skip nothing."
        return 1
    fi
    [ "$FAILED" -eq 0 ]
}

# die MESSAGE...: prints one sentence a line to stderr and exits.
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

# Downloads every crate of Cargo.lock that this machine needs, so that later steps need no network.
fetch_crates() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    if ! (cd "$ROOT" && CARGO_NET_RETRY=${CARGO_NET_RETRY:-10} cargo fetch --locked --target "$host"); then
        echo "The crates of Cargo.lock could not be downloaded. Is there a network, and a proxy to set (https_proxy)?"
        return 1
    fi
}

NEXTEST_VERSION=0.9.143
# Programs that are installed for this clone only.
TOOLS=$ROOT/target/tools

has_nextest() {
    case :$PATH: in
    *":$TOOLS/bin:"*) ;;
    *) export PATH=$PATH:$TOOLS/bin ;;
    esac
    cargo nextest --version >/dev/null 2>&1
}

# setup_nextest: finds cargo-nextest, which runs the tests, or installs it: from its archive, or else from its source.
# Returns 77 where neither is possible.
setup_nextest() {
    local archive=linux
    [ "$(uname -m)" != aarch64 ] || archive=linux-arm
    mkdir -p "$TOOLS/bin"
    if ! has_nextest && ! curl -LsSf --connect-timeout 10 --max-time 300 "https://get.nexte.st/$NEXTEST_VERSION/$archive" |
        tar -xzf - -C "$TOOLS/bin"; then
        cargo install --locked --version "$NEXTEST_VERSION" --root "$TOOLS" cargo-nextest
    fi
    if ! has_nextest; then
        echo "cargo-nextest could not be installed; cargo test runs the tests, without a limit for each" >&3
        return "$CANNOT_RUN"
    fi
    cargo nextest --version | head -n 1 | cut -d' ' -f1-2 | tee /dev/fd/3
}

have_real_traces() {
    [ -d "${RANKSCOPE_DATA:-$ROOT/../shared/data}/kineto" ]
}

# run_tests ARGUMENT...: runs the tests that cargo's ARGUMENTs select, and prints the output of all. The ignored ones read
# real traces, or are the long ones of tests/faults, which .config/nextest.toml leaves out.
run_tests() {
    local more=()
    if has_nextest; then
        ! have_real_traces || more=(--run-ignored all)
        cargo nextest run --locked --success-output final --no-output-indent "${more[@]}" "$@"
    else
        ! have_real_traces || more=(--include-ignored --skip many_times --skip every_fault)
        # Jobs of several ranks run one after the other, so a thread more than cores keeps the cores busy meanwhile.
        cargo test --locked --no-fail-fast "$@" -- --show-output --test-threads $(($(nproc) + 1)) "${more[@]}"
    fi
}

# ---------------------------------------------------------------------------------------------------------------------
# System packages

have_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    # bindgen needs the library and the compiler's own headers (stddef.h).
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || compgen -G '/usr/lib*/libclang.so*' >/dev/null ||
        compgen -G '/usr/local/lib/libclang.so*' >/dev/null || return 1
    compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null ||
        compgen -G '/usr/lib*/clang/*/include/stddef.h' >/dev/null ||
        compgen -G '/usr/local/lib/clang/*/include/stddef.h' >/dev/null
}

# Prints the first Python 3 that can make a virtual environment.
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

# Prints the packages of the distribution's default libclang: 14 on Debian 12 and Ubuntu 22.04, 18 on Ubuntu 24.04, 19 on
# Debian 13. The two packages have a third of the size of libclang-dev.
libclang_packages() {
    local major
    major=$(apt-cache depends libclang-dev 2>/dev/null | sed -n 's/.*Depends: libclang-\([0-9]*\)-dev.*/\1/p' | head -n 1)
    if [ -n "$major" ] && apt-cache show "libclang1-$major" "libclang-common-$major-dev" >/dev/null 2>&1; then
        echo "libclang1-$major libclang-common-$major-dev"
    else
        echo "libclang-dev"
    fi
}

# missing_packages: prints the missing tools, one word a line: compiler, mpi, libclang, python.
missing_packages() {
    command -v cc >/dev/null || echo compiler
    { command -v mpirun && command -v mpicc; } >/dev/null || echo mpi
    have_libclang || echo libclang
    pick_python >/dev/null || echo python
}

# packages_for WORD...: prints the apt packages for words of missing_packages.
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

# apt_install WORD...: installs the packages for the words.
apt_install() {
    local packages
    # A fresh image has no package lists, and the names of libclang's packages are in them. The update may fail for one
    # third-party repository; the installation below reports what is really missing.
    $SUDO "${APT_GET[@]}" update
    read -r -a packages <<<"$(packages_for "$@")"
    echo "installs ${packages[*]}" | tee /dev/fd/3
    if ! $SUDO env DEBIAN_FRONTEND=noninteractive "${APT_GET[@]}" install -y --no-install-recommends "${packages[@]}"; then
        echo "apt-get could not install: ${packages[*]}"
        echo "Is there a network? Is another apt running? The lines above say why."
        return 1
    fi
}

# Installs the missing system packages, or prints the exact command that does.
setup_system() {
    local missing packages
    mapfile -t missing < <(missing_packages)
    if [ "${#missing[@]}" -eq 0 ]; then
        step "System packages" found_system_packages
        return
    fi
    if ! command -v apt-get >/dev/null; then
        die "Missing: ${missing[*]}. This system has no apt-get, so they cannot be installed automatically." \
            "Install a C compiler, Open MPI with its headers, libclang with its headers, and Python 3 with venv;" \
            "then run this script again."
    fi
    SUDO=
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; then
            SUDO=sudo
        else
            packages=$(packages_for "${missing[@]}")
            die "Missing: ${missing[*]}. This user is not root and has no sudo. Ask an administrator to run this:" \
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

# browser: prints the path of a Chromium or Chrome. Only tests/all needs one, so setup_system does not install it.
browser() {
    local name
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        # Ubuntu's package of this name may be a script that only asks for snap, so check that the program runs.
        if command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

# setup_browser: finds a Chromium or installs one by apt. Returns 77 where neither is possible.
setup_browser() {
    local sudo=
    if ! browser >/dev/null && command -v apt-get >/dev/null; then
        if [ "$(id -u)" -ne 0 ]; then sudo="sudo -n"; fi
        # shellcheck disable=SC2086  # two words or none
        $sudo "${APT_GET[@]}" update &&
            $sudo env DEBIAN_FRONTEND=noninteractive "${APT_GET[@]}" install -y --no-install-recommends chromium fonts-dejavu-core
    fi
    if ! browser >/dev/null; then
        echo "Chromium could not be installed. Install it (or Google Chrome, where chromium is a snap) and run this again:"
        echo "  apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core"
        echo "there is no Chromium: apt-get install chromium fonts-dejavu-core" >&3
        return "$CANNOT_RUN"
    fi
    "$(browser)" --version | tee /dev/fd/3
}

# setup_prometheus: finds promtool and prometheus or installs them by apt. Returns 77 where neither is possible.
setup_prometheus() {
    local sudo=
    if ! { command -v promtool && command -v prometheus; } >/dev/null && command -v apt-get >/dev/null; then
        if [ "$(id -u)" -ne 0 ]; then sudo="sudo -n"; fi
        # shellcheck disable=SC2086  # two words or none
        $sudo "${APT_GET[@]}" update &&
            $sudo env DEBIAN_FRONTEND=noninteractive "${APT_GET[@]}" install -y --no-install-recommends prometheus
    fi
    if ! { command -v promtool && command -v prometheus; } >/dev/null; then
        echo "Prometheus could not be installed. Install it and run this again:"
        echo "  apt-get update && apt-get install -y --no-install-recommends prometheus"
        echo "there is no prometheus: apt-get install prometheus" >&3
        return "$CANNOT_RUN"
    fi
    promtool --version 2>&1 | head -n 1 | cut -d' ' -f1-3 | tee /dev/fd/3
}

# ---------------------------------------------------------------------------------------------------------------------
# Python tools (DuckDB and its like)

# setup_python NAME REGEX: installs the packages of tests/checks/requirements.txt whose lines match into .venv.
setup_python() {
    local stamp=$VENV/.rankscope-$1 wanted python
    # The hashes of a package are on the lines after its own.
    wanted=$(awk -v regex="$2" '/^[^ ]/ { on = $0 ~ regex } on' "$ROOT/tests/checks/requirements.txt")
    if "$VENV/bin/python" -c '' 2>/dev/null && [ "$wanted" = "$(cat "$stamp" 2>/dev/null)" ]; then
        echo "already there" >&3
        return 0
    fi
    python=$(pick_python) || return 1
    "$VENV/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$VENV" || return 1
    printf '%s\n' "$wanted" >"$VENV/.wanted"
    # Compiling all modules to bytecode takes half of the time, and few of them are ever imported. To build a package from source,
    # pip would install others without hashes, so only wheels are taken.
    if ! "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --no-compile --retries 10 --timeout 60 \
        --require-hashes --only-binary :all: --requirement "$VENV/.wanted"; then
        echo "pip could not install the tools above. Is there a network, and a proxy to set (https_proxy)?"
        return 1
    fi
    printf '%s\n' "$wanted" >"$stamp"
}

# ---------------------------------------------------------------------------------------------------------------------
# MPI

# mpi_environment: exports the variables that Open MPI needs here. MPI_EXPORTS is the same line for the user's shell.
mpi_environment() {
    if [ "$(id -u)" -eq 0 ]; then
        # mpirun refuses to run as root unless both are set.
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        MPI_EXPORTS="export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    fi
    # A container with a seccomp filter may forbid reading another process's memory, and Open MPI 4 then prints a warning
    # for each attempt. Elsewhere that is the fastest transport between ranks, so it stays on.
    if { [ -e /.dockerenv ] || [ -e /run/.containerenv ]; } && grep -q '^Seccomp:.*2' /proc/self/status 2>/dev/null; then
        export OMPI_MCA_btl_vader_single_copy_mechanism=none
        MPI_EXPORTS="${MPI_EXPORTS:-export} OMPI_MCA_btl_vader_single_copy_mechanism=none"
    fi
}
MPI_EXPORTS=

# mpi_run N COMMAND...: starts N ranks, also on fewer cores.
mpi_run() {
    local ranks=$1
    shift
    if mpirun --version 2>/dev/null | grep -qE 'Open ?MPI|OpenRTE'; then
        mpirun --oversubscribe -n "$ranks" "$@"
    else
        # MPICH has no limit to lift. It busy-waits when oversubscribed and is ten times slower.
        mpirun -n "$ranks" "$@"
    fi
}
