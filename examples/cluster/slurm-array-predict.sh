#!/bin/bash
# Classify many images with 16 independent tasks, each of which takes its share of them:
#
#   sbatch slurm-array-predict.sh runs/photos /shared/images --out /shared/answers.csv
#
# Each task finds its share in SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT, and writes a part. A task that is
# requeued, or submitted again with --array=7, goes on where it stopped. When all tasks are done, the same command
# without a shard checks the parts, computes what is missing and writes the one file:
#
#   vitkit predict runs/photos /shared/images --out /shared/answers.csv
#
#SBATCH --job-name=predict
#SBATCH --array=0-15
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=12
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A-%a.log

exec vitkit predict "$@"
