#!/bin/bash
# Train on the GPUs of one node; the arguments are those of `vitkit fit`:
#
#   sbatch slurm-single-node.sh photos/ --model B/16 --out runs/photos
#
#SBATCH --job-name=vitkit
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4     # one process for each GPU
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=12      # threads and data workers of each process
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log

# steps do not inherit --cpus-per-task since Slurm 22.05
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# one process that fails ends the others; rank 0 scores and reports when the others have ended
exec srun --kill-on-bad-exit=1 --wait=0 vitkit fit "$@"
