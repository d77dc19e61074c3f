#!/bin/bash
# Train in a partition that takes the nodes away, or for longer than its time limit:
#
#   sbatch slurm-preemptible.sh shards/ --recipe imagenet_transfer_384 --out /shared/runs/imagenet
#
# Preempted, or two minutes before the time limit, the run saves a checkpoint. The job is requeued and starts with the
# same command, which continues the run to the result that it would have had without the interruption.
#
#SBATCH --job-name=vitkit
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --time=04:00:00
#SBATCH --requeue               # Slurm requeues the job that it preempts
#SBATCH --signal=USR2@120       # to the processes of the step, before the time limit
#SBATCH --open-mode=append      # one log for all attempts
#SBATCH --output=%x-%j.log

export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# all processes end by themselves with the same code; ending those that take a moment longer would hide it
srun --kill-on-bad-exit=0 --wait=0 vitkit fit "$@"
code=$?
if [ "$code" -eq 140 ]; then    # 128 + SIGUSR2: saved before the time limit, which requeues nothing by itself
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
