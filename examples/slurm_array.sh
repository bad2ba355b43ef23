#!/usr/bin/env bash
# slurm_array.sh - a Slurm job array whose tasks write one array: sbatch examples/slurm_array.sh PATH
# SPDX-License-Identifier: MIT
#SBATCH --job-name=write-array
#SBATCH --array=0-3
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
set -euo pipefail

# An error instead of lost updates, if the locks of the file system do not reach other nodes.
export SHARDCODEC_LOCKING=${SHARDCODEC_LOCKING:-cluster}

# sbatch runs a copy of this file, so the program is found from the folder in which sbatch was called.
exec python examples/slurm_array.py write "$1"
