#!/bin/bash
# One run over all GPUs of a Slurm job: `ray symmetric-run` starts a Ray node on each of its nodes,
# and the run on the first. Where a job may take parts of nodes, slurm-array.sh does the same without
# Ray, and need not wait until several nodes are free at once.
#
#   sbatch --nodes=2 examples/slurm-ray.sh sweep.yaml
#
#SBATCH --job-name=lp-sweep-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=lp-sweep-ray.log

# The store and the sweep file lie on a file system that all nodes share.
store=${LP_SWEEP_STORE:-$SLURM_SUBMIT_DIR/lp-sweep-store}

# The environment in which lp-sweep is installed, for example:
# source "$HOME/lp-sweep/.venv/bin/activate"

# Whole nodes (--exclusive), because a Ray stops every other Ray of this user on its nodes when it
# ends. Only who has the token can join this one. This script runs on the first node. If the nodes
# have several networks, name the address by which the others reach it.
head=$(hostname -I | cut -d ' ' -f 1)
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300   # seconds, for all nodes to start
export RAY_gcs_rpc_server_reconnect_timeout_s=20    # a node without the first one ends then

# The run leaves its process and its exit code here: those of Ray and of srun say less.
state=$(mktemp -d)
trap 'rm -r "$state"' EXIT
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --object-store-memory=200000000 -- \
    bash -c 'lp-sweep run "${@:2}" & echo $! > "$1/process"; wait $!; echo $? > "$1/code"' \
    run "$state" "${@:-sweep.yaml}" --address auto --offline --store "$store" &
ray=$!

# Three minutes before the time is up, Slurm sends USR1 to this script. The run then writes its
# checkpoints and ends within half a minute, Ray within another, and the job is queued again.
warned=
trap 'warned=1; kill -USR1 $(cat "$state/process")' USR1
while kill -0 $ray 2> /dev/null; do
    wait $ray  # a signal ends it early
done
code=$(cat "$state/code" || echo 1)  # without one, no run started: Ray's reason is in the log
if [ "$code" -eq 3 ] && [ -n "$warned" ]; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
