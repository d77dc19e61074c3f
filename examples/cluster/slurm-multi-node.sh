#!/bin/bash
# Train on several nodes; --out must be on a file system that all of them share:
#
#   sbatch slurm-multi-node.sh shards/ --recipe imagenet_transfer_384 --out /shared/runs/imagenet
#
#SBATCH --job-name=vitkit
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8     # one process for each GPU
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12      # threads and data workers of each process
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log

export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# The processes meet at the first node of the step, at a port that is made of the job's number. Where that name is not
# the one to connect to, or the port is closed:
#   export MASTER_ADDR=… MASTER_PORT=…
# Where NCCL picks the wrong network:
#   export NCCL_SOCKET_IFNAME=ib0

exec srun --kill-on-bad-exit=1 --wait=0 vitkit fit "$@"
