#!/bin/bash
# One run of Lockstep on one or several machines: `sbatch --job-name=ppo-seed0 train.sh --seed 0`. README.md says what to
# change. The words after the script's name are further options of `lockstep train`.
#SBATCH --job-name=ppo-cartpole
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
# Jobs of one name run one after the other: the name says which run a job continues.
#SBATCH --dependency=singleton
# A job whose machine fails, or that gives way to another one, goes back into the queue.
#SBATCH --requeue
# This script gets SIGUSR1 five minutes before the time limit, and puts the job back into the queue, too.
#SBATCH --signal=B:USR1@300
set -euo pipefail

train=(ppo CartPole-v1 --device cuda --total-steps 1_000_000 --root runs)

# One rank for each GPU of a machine; without GPUs, one for each of its CPUs.
export RANKS_PER_NODE=${SLURM_GPUS_ON_NODE:-$SLURM_CPUS_PER_TASK}
# The ranks meet at the first machine. The port is below those that Linux gives out by itself.
# (All names are read, then the first is kept: `| head -n 1` could end scontrol by SIGPIPE, and this script with it.)
HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
HOST=${HOSTS%%$'\n'*}
export MEETING_POINT=$HOST:$((10000 + SLURM_JOB_ID % 20000))

# Since Slurm 22.05 srun does not inherit --cpus-per-task: without it, all ranks of a machine would share one CPU.
# `--rdzv-id` names the run. A job that starts again under this name continues from the newest checkpoint.
# shellcheck disable=SC2016 # the quoted words are for the shell on each machine
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c '
    exec torchrun \
        --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$RANKS_PER_NODE" --max-restarts=3 \
        --rdzv-id="$SLURM_JOB_NAME" --rdzv-backend=c10d \
        --rdzv-endpoint="$MEETING_POINT" --rdzv-conf="is_host=$((SLURM_NODEID == 0))" \
        -m lockstep train "$@"
' ranks "${train[@]}" "$@" &
ranks=$!

# scancel signals the ranks, which write a checkpoint and end. (SIGTERM to srun itself would make it kill them.)
requeue() {
    scancel --signal=TERM "$SLURM_JOB_ID"
    if ! wait "$ranks"; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit
}
trap requeue USR1
wait "$ranks"
