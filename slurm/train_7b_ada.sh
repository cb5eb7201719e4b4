#!/usr/bin/env bash
# Reinforce-Ada on Qwen2.5-Math-7B: `slurm/train_7b_ada.sh [OVERLAY.yaml ...] [--option=of-sbatch ...] [key=value ...]` submits itself with the settings of site.env.
#SBATCH --job-name=ada-7b
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@900
#SBATCH --array=1-20%1
#SBATCH --no-requeue
#SBATCH --propagate=NONE
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%A.log
CONFIG=${CONFIG:-configs/qwen2.5-math-7b.yaml}
root=${NEMO_ADA_HOME:-$(dirname "$0")/..}
[[ -n ${NEMO_ADA_HOME:-} || -r $root/slurm/lib.sh ]] || root=${SLURM_SUBMIT_DIR:-$root}  # SLURM runs a copy of this script
if [[ ! -r $root/slurm/lib.sh ]]; then
  echo "error: no slurm/lib.sh in $root: submit from the project's root or set NEMO_ADA_HOME" >&2
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then scontrol update "JobId=$SLURM_ARRAY_JOB_ID" StartTime=now+600; fi  # perhaps this node alone
  exit 2
fi
# shellcheck source=/dev/null
source "$root/slurm/lib.sh"
main train_7b_ada.sh "$root" "$@"
