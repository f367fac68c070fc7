#!/usr/bin/env bash
# Records a PyTorch program on every rank that torchrun starts. Run it on every node, as you would run torchrun.
#
#   RUN=run launch/torchrun.sh --nproc-per-node 8 -- train.py --epochs 1
#
# torchrun's flags come before `--`, the script and its arguments after it.
# RUN          directory of the run, on a file system that all nodes share (default: run)
# RANK_AGENT   the command that has `exec` (default: rankscope, or rank-agent if there is no rankscope)
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
command=${RANK_AGENT:-$(command -v rankscope || echo rank-agent)}
# --no-python: torchrun starts the command itself, which starts the interpreter.
exec torchrun "${flags[@]}" --no-python "$command" exec --out "${RUN:-run}" -- "${PYTHON:-python}" "$@"
