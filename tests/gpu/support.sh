# shellcheck shell=bash
# What the parts of tests/gpu/run share.

# row CLAIM RESULT DETAIL: one line of the table, for the part that runs.
row() {
    printf '%-14s %-16s %-8s %s\n' "$PART" "$1" "$2" "$3"
    printf '%s\t%s\t%s\t%s\t%s\n' "$CALL" "$PART" "$1" "$2" "$3" >>"$RESULTS/table.tsv"
    case $2 in
    ok) PASSED=$((PASSED + 1)) ;;
    FAILED) FAILED=$((FAILED + 1)) ;;
    *) SKIPPED=$((SKIPPED + 1)) ;;
    esac
}

# facts CLAIM COMMAND ARGS…, results CLAIM COMMAND ARGS…: the lines of facts.py and read_results.py as rows.
facts() { read_with facts "$@"; }
results() { read_with read_results "$@"; }
read_with() {
    local script=$1 claim result detail any=
    shift
    while IFS=$'\t' read -r claim result detail; do
        any=1
        row "$claim" "$result" "$detail$LOST"
    done < <("$PYTHON" "$HERE/$script.py" "$@" 2>"$RESULTS/$PART.err")
    [ -n "$any" ] || row "$1" FAILED "$script.py $2: $(tail -n 1 "$RESULTS/$PART.err")"
}

# For the carried programs only: Python has libraries of its own.
carried() { LD_LIBRARY_PATH=$LIBRARIES "$@"; }

# Exit code 3 means done, with some rows lost: the part goes on and says so.
done_by() {
    "$@"
    CODE=$?
    LOST=
    [ "$CODE" -eq 3 ] && LOST="; SOME ROWS WERE LOST"
    [ "$CODE" -eq 0 ] || [ "$CODE" -eq 3 ]
}

# agent SECONDS NAME ARGS…: rank-agent with one rank. Results of an earlier call go.
agent() {
    local seconds=$1 name=$2
    shift 2
    rm -rf "${RESULTS:?}/$name"
    done_by carried timeout "$seconds" "$BIN/rank-agent" "$@" >"$RESULTS/$name.log" 2>&1
}

# ranks SECONDS N NAME ARGS…: N ranks on this machine. Without --bind-to none, mpirun gives each rank one core, which its main
# thread, NCCL's proxy and CUPTI's worker would share.
ranks() {
    local seconds=$1 n=$2 name=$3
    shift 3
    rm -rf "${RESULTS:?}/$name"
    done_by carried timeout "$seconds" "$MPIRUN" --bind-to none --oversubscribe -n "$n" "$BIN/rank-agent" --out "$RESULTS/$name" "$@" \
        >"$RESULTS/$name.log" 2>&1
}

# recorded ARGS…: fills RECORDED with the words that put a program under exec. The library path is that of the carried program; it
# gives the program the one that Python had.
recorded() {
    RECORDED=(env LD_LIBRARY_PATH="$LIBRARIES" "$BIN/rank-agent" exec "$@" -- env LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}")
}

# torchrun SECONDS NAME COMMAND…: two processes of a PyTorch program. The address is given, because torchrun would look its host's
# name up, which needs a resolver.
torchrun() {
    local seconds=$1 name=$2
    shift 2
    done_by timeout "$seconds" "${TORCHRUN[@]}" "$@" >"$RESULTS/$name.log" 2>&1
}

# program NAME: fills PROGRAM with the words that start a program of programs/, or with its stand-in.
program() {
    PROGRAM=("$PYTHON" "$HERE/programs/$1")
    [ -z "$STANDIN" ] || PROGRAM=("$PYTHON" "$HERE/programs/standin.py" "$1")
}

# ddp SECONDS NAME RECORDED? [ARGS…]: DistributedDataParallel on two ranks; with the words of EXEC_ARGS, and the NCCL of PRELOAD.
ddp() {
    local seconds=$1 name=$2 record=$3
    shift 3
    rm -rf "${RESULTS:?}/$name" "${RESULTS:?}/$name.ddp"
    mkdir -p "$RESULTS/$name.ddp"
    RECORDED=()
    # shellcheck disable=SC2086
    [ -z "$record" ] || recorded ${EXEC_ARGS:-} --out "$RESULTS/$name"
    program ddp.py
    torchrun "$seconds" "$name" env ${PRELOAD:+LD_PRELOAD="$PRELOAD"} "${RECORDED[@]}" "${PROGRAM[@]}" --out "$RESULTS/$name.ddp" "$@"
}

# nccl_case SECONDS NAME CASE RECORDED?: a case of programs/nccl_cases.py, with the NCCL of PRELOAD; its result in NAME.case.json.
nccl_case() {
    rm -rf "${RESULTS:?}/$2" "$RESULTS/$2.case.json"
    RECORDED=()
    [ -z "$4" ] || recorded --out "$RESULTS/$2"
    program nccl_cases.py
    torchrun "$1" "$2" env ${PRELOAD:+LD_PRELOAD="$PRELOAD"} "${RECORDED[@]}" "${PROGRAM[@]}" "$3" "$RESULTS/$2.case.json"
}

last_line() { grep -a . "$RESULTS/$1.log" | tail -n 1 | cut -c1-200; }
ms_of() { sed -nE 's/.*; ([0-9.]+) ms a step.*/\1/p' "$RESULTS/$1.log" | tail -n 1; }
loss_of() { sed -nE 's/.*done: loss ([0-9.]+) → ([0-9.]+).*/\1 \2/p' "$RESULTS/$1.log" | tail -n 1; }

# failed CLAIM NAME: the line of a run that did not end well.
failed() {
    local why="exit code $CODE"
    [ "$CODE" -eq 124 ] && why="it did not end in time"
    row "$1" FAILED "$2: $why: $(last_line "$2")"
}

# analyze CLAIM NAME: analyzes a run into NAME.json and NAME.txt. Both list rows that were left out (exit code 3).
analyze() {
    if done_by carried "$BIN/aggregator" analyze "$RESULTS/$2" >"$RESULTS/$2.txt" 2>"$RESULTS/$2.analyze.log" &&
        done_by carried "$BIN/aggregator" analyze "$RESULTS/$2" --json >"$RESULTS/$2.json" 2>>"$RESULTS/$2.analyze.log"; then
        return 0
    fi
    row "$1" FAILED "$2: aggregator analyze: $(tail -n 1 "$RESULTS/$2.analyze.log")"
    return 1
}

# lacks_torch CLAIM…, lacks_mpi CLAIM…: whether the part cannot run here; its claims are then skipped.
lacks_torch() {
    [ -n "$TORCH" ] && return 1
    local claim
    for claim in "$@"; do row "$claim" skipped "it needs a python3 with a torch that sees a GPU"; done
}
lacks_mpi() {
    [ -n "$MPIRUN" ] && return 1
    local claim
    for claim in "$@"; do row "$claim" skipped "it needs mpirun, carried (tests/gpu/pack) or installed"; done
}
