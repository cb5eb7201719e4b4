#!/usr/bin/env bash
# Reinforce-Ada on Qwen3-235B-A22B: `slurm/train_235b_a22b_ada.sh [--option=of-sbatch ...] [key=value ...]` submits itself with the settings of site.env.
#SBATCH --job-name=ada-235b-a22b
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@6900
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%j.log
CONFIG=${CONFIG:-configs/qwen3-235b-a22b/ada-qwen3-235b-a22b-16n8g-tp2pp8cp2ep16.yaml}
root=${NEMO_ADA_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -r $root/slurm/lib.sh ]] || { echo "error: no slurm/lib.sh in $root: submit from the project's root or set NEMO_ADA_HOME" >&2; exit 2; }
# shellcheck source=/dev/null
source "$root/slurm/lib.sh"
main train_235b_a22b_ada.sh "$root" "$@"
