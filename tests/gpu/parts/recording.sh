# shellcheck shell=bash
# What is recorded of a device and of NCCL.

part_machine() {
    local line dtype ours theirs
    {
        nvidia-smi -L
        ldconfig -p | grep -E 'libcuda\.|cupti|libnccl|nvrtc|libcublas\.'
        getent hosts "$(hostname)" || echo "no name for this host"
        ip -br a
        df -h /dev/shm | tail -n 1
    } >"$RESULTS/machine.txt" 2>&1
    if ! agent 150 selftest selftest --large "$LARGE" --gemm "$GEMM_SIDE"; then
        failed operations selftest
        return
    fi
    while read -r line; do row operations ok "$line"; done < <(grep -a '^check' "$RESULTS/selftest.log")
    if [ -n "$STANDIN" ] || lacks_torch products; then return; fi
    if ! done_by timeout 100 "$PYTHON" "$HERE/programs/torch_reference.py" gemm "$GEMM_SIDE" >"$RESULTS/torch_gemm.log" 2>&1; then
        failed products torch_gemm
        return
    fi
    for dtype in f32 tf32 bf16; do
        ours=$(sed -nE "s/^gemm $dtype [0-9]+: ([0-9.]+) .*/\1/p" "$RESULTS/selftest.log")
        theirs=$(sed -nE "s/^gemm $dtype [0-9]+: ([0-9.]+) .*/\1/p" "$RESULTS/torch_gemm.log")
        row products "$(awk -v a="${ours:-0}" -v b="${theirs:-1}" 'BEGIN {print (a >= 0.9 * b) ? "ok" : "FAILED"}')" \
            "$dtype, side $GEMM_SIDE: $ours TFLOP/s, PyTorch $theirs"
    done
}

# windows_of CLAIM NAME [ARGS…]: three windows, so that CUPTI is paused and resumed.
windows_of() {
    local claim=$1 name=$2
    shift 2
    # shellcheck disable=SC2086
    if ! agent 100 "$name" $TRAIN --dtype bf16 --backend cuda --steps 60 --schedule wait=3,warmup=2,active=10,repeat=3 "$@" \
        --out "$RESULTS/$name"; then
        failed "$claim" "$name"
    else
        facts "$claim" windows "$RESULTS/$name" 3
        analyze "$claim" "$name"
    fi
}

part_windows() { windows_of windows windows; }

part_graph_windows() {
    windows_of graph_windows graph_windows --cuda-graph
    if [ -s "$RESULTS/windows.json" ] && [ -s "$RESULTS/graph_windows.json" ]; then
        results graph_windows same_kernels "$RESULTS/windows.json" "$RESULTS/graph_windows.json"
    fi
}

part_exits() {
    lacks_torch exits && return
    local run runs=()
    program launches.py
    for run in $(seq "$EXITS"); do
        rm -rf "$RESULTS/exits_$run"
        recorded --quiet --out "$RESULTS/exits_$run"
        if ! done_by timeout 60 "${RECORDED[@]}" "${PROGRAM[@]}" exit 2000 >"$RESULTS/exits.log" 2>&1; then
            failed exits exits
        fi
        runs+=("$RESULTS/exits_$run")
    done
    # PyTorch's kernel of a product with a number, and the stand-in's.
    if [ -n "$STANDIN" ]; then
        facts exits exits gemm 10 "${runs[@]}"
    else
        facts exits exits MulFunctor 2000 "${runs[@]}"
    fi
}

# ddp_of NAME: reads a recorded DistributedDataParallel.
ddp_of() {
    analyze ddp "$1" && results ddp ddp "$RESULTS/$1" "$RESULTS/$1.json" "$RESULTS/$1.ddp/ddp.json"
}

part_channels() {
    lacks_torch ddp channel_times && return
    local detail
    for detail in channels proxy coll; do
        if EXEC_ARGS="--nccl-detail $detail" ddp 90 "ddp_$detail" recorded --steps 20; then
            ddp_of "ddp_$detail"
        else
            failed ddp "ddp_$detail"
        fi
    done
    facts channel_times channels "$RESULTS/ddp_channels"
}

part_nccl_cases() {
    lacks_torch groups self_sends nccl_graphs && return
    # How the program behaves alone.
    nccl_case 60 graph_alone graph "" || failed nccl_graphs graph_alone
    local pair case claim
    for pair in group:groups alltoall:self_sends graph:nccl_graphs; do
        case=${pair%:*}
        claim=${pair#*:}
        if ! nccl_case 80 "case_$case" "$case" recorded; then
            failed "$claim" "case_$case"
        elif [ -n "$STANDIN" ]; then
            row "$claim" skipped "the stand-in plays plain all-reduces only: $("$PYTHON" "$HERE/facts.py" "$claim" "$case" "$RESULTS/case_$case" | cut -f3)"
        elif analyze "$claim" "case_$case"; then
            facts "$claim" "$case" "$RESULTS/case_$case"
        fi
    done
}

part_switched() {
    lacks_torch switching && return
    if EXEC_ARGS=$SWITCHED ddp 170 switched recorded --steps 300; then
        facts switching switched "$RESULTS/switched"
    else
        failed switching switched
    fi
}
