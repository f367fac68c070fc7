# shellcheck shell=bash
# What recording does to the program, and to other profilers.

part_profilers() {
    local profiler
    profiler=$(command -v ncu || command -v nsys)
    if [ -z "$profiler" ]; then
        row other_profilers skipped "it needs ncu or nsys"
    else
        under_profiler "$profiler"
    fi
    lacks_torch other_profilers && return
    if ddp 120 profiled recorded --profile; then
        ddp_of profiled
        results other_profilers profiled "$RESULTS/profiled.ddp"
    else
        failed other_profilers profiled
    fi
}

# under_profiler PROGRAM: one rank under ncu or nsys, which then has CUPTI.
under_profiler() {
    # Other jobs may use the device: do not change its clocks.
    local arguments=(--target-processes all --kernel-name no_such_kernel --clock-control none)
    [ "$(basename "$1")" = nsys ] && arguments=(profile -o "$RESULTS/nsys")
    rm -rf "${RESULTS:?}/conflict"
    # shellcheck disable=SC2086
    if ! done_by carried timeout 100 "$1" "${arguments[@]}" "$BIN/rank-agent" $SMALL --backend cuda --out "$RESULTS/conflict" \
        >"$RESULTS/conflict.log" 2>&1; then
        failed other_profilers conflict
    elif grep -aq 'is not recorded: ' "$RESULTS/conflict.log"; then
        row other_profilers ok "$(grep -a 'is not recorded: ' "$RESULTS/conflict.log" | head -n 1 | cut -c1-200)"
    else
        row other_profilers ok "$(basename "$1") and rank-agent did not disturb each other"
    fi
}

# in_turns PAIR: the order of a pair of runs, with and without recording.
in_turns() { if [ $(($1 % 2)) -eq 0 ]; then echo off on; else echo on off; fi; }

part_cost() {
    local pair record times=()
    for pair in 1 2 3; do
        for record in $(in_turns "$pair"); do
            # shellcheck disable=SC2086
            agent 40 "cost_${record}_$pair" $TRAIN --backend cuda --dtype bf16 --steps 40 --schedule wait=5,warmup=5,active=20,repeat=1 \
                --record "$record" --out "$RESULTS/cost_${record}_$pair" || {
                failed cost "cost_${record}_$pair"
                return
            }
        done
        times+=("$(ms_of "cost_on_$pair"):$(ms_of "cost_off_$pair")")
        [ "$pair" -eq 1 ] || rm -rf "$RESULTS/cost_on_$pair"
    done
    analyze cost cost_on_1 && results cost overhead "$RESULTS/cost_on_1.json" "${times[@]}"
    launch_cost
}

launch_cost() {
    lacks_torch cost && return
    local pair record us=()
    program launches.py
    for pair in 1 2 3; do
        for record in $(in_turns "$pair"); do
            rm -rf "$RESULTS/launches"
            RECORDED=()
            [ "$record" = off ] || recorded --quiet --out "$RESULTS/launches"
            done_by timeout 60 "${RECORDED[@]}" "${PROGRAM[@]}" cost "$LAUNCHES" >"$RESULTS/launches.log" 2>&1 || failed cost launches
            us+=("$record $(sed -nE 's/^us a launch: //p' "$RESULTS/launches.log")")
        done
    done
    row cost ok "a launch in us: $(printf '%s, ' "${us[@]}")three pairs of $LAUNCHES"
}

part_ddp_cost() {
    lacks_torch cost && return
    local pair record
    for pair in 1 2 3; do
        for record in $(in_turns "$pair") profiled; do
            case $record in
            on) ddp 60 "ddp_on_$pair" recorded ;;
            off) ddp 60 "ddp_off_$pair" "" ;;
            profiled) ddp 60 "ddp_profiled_$pair" "" --profile ;;
            esac || {
                failed cost "ddp_${record}_$pair"
                return
            }
        done
        results cost ddp_cost "$RESULTS/ddp_off_$pair.ddp/ddp.json" "$RESULTS/ddp_on_$pair.ddp/ddp.json" \
            "$RESULTS/ddp_profiled_$pair.ddp/ddp.json"
    done
}
