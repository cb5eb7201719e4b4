#!/usr/bin/env bash
# Reinforce-Ada on Llama-3.3-70B-Instruct: `slurm/train_70b_ada.sh [--option=of-sbatch ...] [key=value ...]` submits itself with the settings of site.env.
#SBATCH --job-name=ada-70b
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@2100
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%j.log
CONFIG=${CONFIG:-configs/llama-3.3-70b-instruct/ada-llama-3.3-70b-instruct-8n8g-tp4pp4.yaml}
root=${NEMO_ADA_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -r $root/slurm/lib.sh ]] || { echo "error: no slurm/lib.sh in $root: submit from the project's root or set NEMO_ADA_HOME" >&2; exit 2; }
# shellcheck source=/dev/null
source "$root/slurm/lib.sh"
main train_70b_ada.sh "$root" "$@"
