#!/usr/bin/env bash
# Reinforce-Ada on Qwen2.5-Math-7B: `sbatch slurm/train_7b_ada.sh [key=value ...]`, or `slurm/train_7b_ada.sh` to submit with site.env's account.
#SBATCH --job-name=ada-7b
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@900
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%j.log
CONFIG=${CONFIG:-configs/qwen2.5-math-7b/ada-qwen2.5-math-7b-1n8g-tp4.yaml}
root=${NEMO_ADA_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -r $root/slurm/lib.sh ]] || { echo "error: no slurm/lib.sh in $root: submit from the project's root or set NEMO_ADA_HOME" >&2; exit 2; }
# shellcheck source=/dev/null
source "$root/slurm/lib.sh"
main train_7b_ada.sh "$root" "$@"
