#!/usr/bin/env bash
# Records a PyTorch program on every rank that torchrun starts. Run it on every node, as you would run torchrun.
#
#   RUN=run launch/torchrun.sh --nproc-per-node 8 -- train.py --epochs 1
#
# Before `--` stand torchrun's flags, after it the script and its arguments.
# RUN          directory of the run, on a file system that all nodes share (default: run)
# RANK_AGENT   the rank-agent command (default: rank-agent)
# PYTHON       the interpreter (default: python)
set -euo pipefail
flags=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    flags+=("$1")
    shift
done
[ $# -gt 1 ] || {
    echo "usage: launch/torchrun.sh [TORCHRUN FLAGS] -- SCRIPT [ARGS]" >&2
    exit 2
}
shift
# --no-python: torchrun starts rank-agent itself, and rank-agent the interpreter.
exec torchrun "${flags[@]}" --no-python "${RANK_AGENT:-rank-agent}" exec --out "${RUN:-run}" -- "${PYTHON:-python}" "$@"
