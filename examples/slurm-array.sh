#!/bin/bash
# A Slurm array: each task is a run of its own on one GPU, and all share the store. Submit as many
# tasks as you want GPUs, and again whenever you like: a trial is done once, and a run that finds
# nothing to do ends.
#
#   sbatch examples/slurm-array.sh sweep.yaml
#
#SBATCH --job-name=lp-sweep
#SBATCH --array=0-3
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=lp-sweep-%a.log

# The store and the sweep file lie on a file system that all nodes share.
store=${LP_SWEEP_STORE:-$SLURM_SUBMIT_DIR/lp-sweep-store}

# The environment in which lp-sweep is installed, for example:
# source "$HOME/lp-sweep/.venv/bin/activate"

lp-sweep run "${@:-sweep.yaml}" --inline --offline --store "$store" &
run=$!

# Two minutes before the time is up, Slurm sends USR1 to this script. The run then writes its
# checkpoint, gives its work back, and ends with exit code 3 in half a minute. The task is queued
# again and continues from there. TERM is what `scancel` and a preemption send.
warned=
trap 'warned=1; kill -USR1 $run' USR1
trap 'kill -TERM $run' TERM
while kill -0 $run 2> /dev/null; do
    wait $run  # a signal ends it early
done
wait $run
code=$?
if [ "$code" -eq 3 ] && [ -n "$warned" ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    exit 0
fi
exit $code
