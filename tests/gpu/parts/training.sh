# shellcheck shell=bash
# The reference workload, and what analyses say of it and of PyTorch.

# same_losses CLAIM RUN_A RUN_B BOUND
same_losses() {
    results "$1" losses "$RESULTS/$2" "$RESULTS/$3" "$4" "$(loss_of "$2")" "$(loss_of "$3")"
}

part_ranks() {
    lacks_mpi ranks && return
    local name args
    for name in ranks_nccl ranks_mpi ranks_graph; do
        case $name in
        ranks_graph) args="--collectives nccl --cuda-graph" ;;
        *) args="--collectives ${name#ranks_}" ;;
        esac
        # shellcheck disable=SC2086
        if ! ranks 75 2 "$name" $SHARED $args --backend cuda --share-gpu; then
            failed ranks "$name"
        elif analyze ranks "$name"; then
            results ranks summary "$RESULTS/$name.json"
            [ "$name" = ranks_nccl ] || same_losses ranks ranks_nccl "$name" 1e-4
        fi
    done
    # The ranks check the numbers of each transfer.
    for name in ranks_pipeline ranks_tensor ranks_sharded; do
        case $name in
        ranks_pipeline) args="--parallel dp=2,pp=2 --compute sleep" ;;
        ranks_tensor) args="--parallel dp=2,tp=2 --compute sleep" ;;
        *) args="--parallel dp=4 --fsdp --compute sleep" ;;
        esac
        # shellcheck disable=SC2086
        if ! ranks 75 4 "$name" $SMALL $args --collectives nccl --share-gpu; then
            failed ranks "$name"
        elif analyze ranks "$name"; then
            results ranks summary "$RESULTS/$name.json"
        fi
    done
}

# With the same data and parameters, losses differ by rounding only: bounds for all steps, as shares of the largest loss.
part_losses() {
    # shellcheck disable=SC2086
    if ! agent 100 loss_cpu $SMALL --backend cpu --out "$RESULTS/loss_cpu"; then
        failed losses loss_cpu
        return
    fi
    local dtype bound
    for dtype in f32:1e-5 tf32:1e-3 bf16:1e-2; do
        bound=${dtype#*:}
        dtype=${dtype%:*}
        # shellcheck disable=SC2086
        if agent 60 "loss_$dtype" $SMALL --backend cuda --dtype "$dtype" --out "$RESULTS/loss_$dtype"; then
            same_losses losses loss_cpu "loss_$dtype" "$bound"
        else
            failed losses "loss_$dtype"
        fi
    done
}

# The reference workload beside the same steps in PyTorch, and a DistributedDataParallel beside torch.profiler's count.
part_kernel_counts() {
    lacks_torch kernel_counts products && return
    if [ -z "$STANDIN" ] && [ -s "$RESULTS/windows.json" ]; then
        # shellcheck disable=SC2086
        if ! done_by timeout 100 "$PYTHON" "$HERE/programs/torch_reference.py" trace "$RESULTS/torch_trace.json" $TRAIN >"$RESULTS/torch_trace.log" 2>&1; then
            failed products torch_trace
        elif done_by carried "$BIN/aggregator" analyze "$RESULTS/torch_trace.json" --json --out "$RESULTS/torch_analysis" \
            >"$RESULTS/torch.json" 2>"$RESULTS/torch.analyze.log"; then
            results products same_gemms "$RESULTS/windows.json" "$RESULTS/torch.json"
        fi
    fi
    [ -d "$RESULTS/ddp_coll" ] || EXEC_ARGS="--nccl-detail coll" ddp 90 ddp_coll recorded || failed kernel_counts ddp_coll
    if ddp 100 ddp_profiled "" --profile; then
        facts kernel_counts kernel_counts "$RESULTS/ddp_coll" "$RESULTS/ddp_profiled.ddp"
    else
        failed kernel_counts ddp_profiled
    fi
}

part_bandwidth() {
    lacks_torch bandwidth && return
    if nccl_case 120 bandwidth bandwidth recorded; then
        analyze bandwidth bandwidth && results bandwidth bandwidth "$RESULTS/bandwidth.json" "$RESULTS/bandwidth.case.json"
    elif [ -n "$STANDIN" ] && [ "$CODE" -eq 77 ]; then
        row bandwidth skipped "the stand-ins move no bytes"
    else
        failed bandwidth bandwidth
    fi
}

part_straggler() {
    lacks_mpi straggler && return
    # shellcheck disable=SC2086
    if ! ranks 100 2 straggler $SHARED --backend cuda --share-gpu --collectives nccl --inject "slow:rank=1,ms=$SLOW_MS"; then
        failed straggler straggler
        return
    fi
    facts straggler delays "$RESULTS/straggler" 1 "$SLOW_MS"
    analyze straggler straggler && results straggler straggler "$RESULTS/straggler.json" 1 "$SLOW_MS"
}

part_hang() {
    lacks_torch hang && return
    # The program never ends by itself: the time limit ends it, as a scheduler would.
    if nccl_case "$HANG_S" hang hang recorded; then
        row hang FAILED "the program ended"
    elif [ "$CODE" -ne 124 ]; then
        failed hang hang
    else
        analyze hang hang && results hang hang "$RESULTS/hang.json" 1
    fi
}
