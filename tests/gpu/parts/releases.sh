# shellcheck shell=bash
# Other releases of NCCL and CUPTI than those of PyTorch.

# Every NCCL of NCCL_LIBRARIES carries the reference workload and, if PyTorch has all its functions there, a DistributedDataParallel
# and broadcasts, after which a release that confuses its times could hang.
# Without CUPTI, a line says so and NCCL is recorded alone.
part_nccl_versions() {
    local nccl index=0 version
    [ -n "${NCCL_LIBRARIES:-}" ] || row nccl_releases skipped "it needs NCCL_LIBRARIES"
    for nccl in ${NCCL_LIBRARIES:-}; do
        index=$((index + 1))
        # The dynamic loader would take the default one.
        if ! version=$(version_of "$nccl"); then
            row nccl_releases FAILED "$nccl is no NCCL"
            continue
        fi
        own_workload "$nccl" "nccl$index" &&
            facts nccl_releases release "$RESULTS/nccl$index" "$RESULTS/nccl$index.json" "$RESULTS/nccl$index.log" "$version"
        if ! LD_PRELOAD=$nccl "$PYTHON" -c 'import torch' 2>/dev/null; then
            row ddp skipped "PyTorch does not start with NCCL $version"
            continue
        fi
        if PRELOAD=$nccl ddp 100 "ddp_nccl$index" recorded; then ddp_of "ddp_nccl$index"; else failed ddp "ddp_nccl$index"; fi
        broadcasts_of "$nccl" "broadcasts_nccl$index"
    done
    lacks_torch ddp && return
    if RANKSCOPE_CUPTI=/nonexistent ddp 100 ddp_no_cupti recorded; then ddp_of ddp_no_cupti; else failed ddp ddp_no_cupti; fi
}

# broadcasts_of NCCL NAME: broadcasts and all-reduces.
broadcasts_of() {
    if ! PRELOAD=$1 nccl_case 60 "$2" broadcasts recorded; then
        failed nccl_releases "$2"
    elif [ -n "$STANDIN" ]; then
        row nccl_releases skipped "the stand-in plays plain all-reduces only"
    elif analyze nccl_releases "$2"; then
        facts nccl_releases broadcasts "$RESULTS/$2"
    fi
}

# version_of NCCL: prints the release of a library.
version_of() {
    PYTHONPATH=$HERE/programs "$PYTHON" -c 'import ddp, sys; print(*ddp.nccl_version(sys.argv[1]), sep=".")' "$1" 2>/dev/null
}

# own_workload NCCL NAME: the reference workload with an NCCL, recorded by its profiler plugin.
own_workload() {
    lacks_mpi nccl_releases && return 1
    rm -rf "${RESULTS:?}/$2" "${RESULTS:?}/$2.own"
    # shellcheck disable=SC2086
    if ! done_by env LD_LIBRARY_PATH="$(dirname "$1")${LIBRARIES:+:$LIBRARIES}" timeout 75 "$MPIRUN" --bind-to none --oversubscribe -n 2 \
        "$BIN/rank-agent" exec --out "$RESULTS/$2" -- \
        "$BIN/rank-agent" $SHARED --record off --backend cuda --share-gpu --collectives nccl --out "$RESULTS/$2.own" \
        >"$RESULTS/$2.log" 2>&1; then
        failed nccl_releases "$2"
        return 1
    fi
    analyze nccl_releases "$2"
}

part_cupti_versions() {
    local cupti index=0
    [ -n "${CUPTI_LIBRARIES:-}" ] || row cupti_releases skipped "it needs CUPTI_LIBRARIES"
    for cupti in ${CUPTI_LIBRARIES:-}; do
        index=$((index + 1))
        if [ ! -e "$cupti" ]; then
            row cupti_releases FAILED "$cupti is missing"
            continue
        fi
        RANKSCOPE_CUPTI=$cupti windows_of cupti_releases "windows_cupti$index"
        RANKSCOPE_CUPTI=$cupti windows_of cupti_releases "graph_windows_cupti$index" --cuda-graph
    done
}
