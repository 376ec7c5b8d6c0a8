#!/bin/bash
# Slurm's environment as torchrun's arguments: `srun on_slurm_node.sh -m reference.train ...`, one task on each node.
set -euo pipefail

# The first node of the job hosts the rendezvous. Slurm keeps the list short (gpu[01-04]); scontrol writes it out.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*}
# Jobs that share a node need ports of their own. The numbers of jobs follow each other, so these differ.
port=$((29500 + SLURM_JOB_ID % 1000))
# Processes that share a machine must not each take all of its cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(((SLURM_CPUS_PER_TASK + RANKS_PER_NODE - 1) / RANKS_PER_NODE))}"

[ -d .venv ] && . .venv/bin/activate
exec torchrun \
    --nnodes="$SLURM_NNODES" \
    --node-rank="$SLURM_NODEID" \
    --nproc-per-node="$RANKS_PER_NODE" \
    --master-addr="$head" \
    --master-port="$port" \
    "$@"
