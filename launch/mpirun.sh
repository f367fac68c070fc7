#!/usr/bin/env bash
# Records a CUDA/NCCL program on every rank that mpirun starts.
#
#   RANKS=8 RUN=run launch/mpirun.sh python train.py
#
# RANKS        ranks to start (default 8)
# RUN          directory of the run, on a file system that all hosts share (default: run)
# RANK_AGENT   the command that has `exec` (default: rankscope, or rank-agent if there is no rankscope)
# MPIRUN_FLAGS further flags for mpirun, as in "--hostfile hosts --oversubscribe"
#
# On several hosts, name one address of rank 0's host for all ranks: MPIRUN_FLAGS="-x MASTER_ADDR=node0 -x MASTER_PORT=29500".
set -euo pipefail
command=${RANK_AGENT:-$(command -v rankscope || echo rank-agent)}
# shellcheck disable=SC2086  # flags are words
exec mpirun -n "${RANKS:-8}" ${MPIRUN_FLAGS:-} "$command" exec --out "${RUN:-run}" -- "$@"
