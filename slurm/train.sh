#!/usr/bin/env bash
# Trains any config: `slurm/train.sh CONFIG.yaml [OVERLAY.yaml ...] [--option=of-sbatch ...] [key=value ...]`. It submits
# itself with the settings of site.env, on the nodes and for the time that `nemo-ada plan --sbatch` names.
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --array=1-20%1
#SBATCH --no-requeue
#SBATCH --propagate=NONE
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%A.log
root=${NEMO_ADA_HOME:-$(dirname "$0")/..}
[[ -n ${NEMO_ADA_HOME:-} || -r $root/slurm/lib.sh ]] || root=${SLURM_SUBMIT_DIR:-$root}  # SLURM runs a copy of this script
if [[ ! -r $root/slurm/lib.sh ]]; then
  echo "error: no slurm/lib.sh in $root: submit from the project's root or set NEMO_ADA_HOME" >&2
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then scontrol update "JobId=$SLURM_ARRAY_JOB_ID" StartTime=now+600; fi  # perhaps this node alone
  exit 2
fi
# shellcheck source=/dev/null
source "$root/slurm/lib.sh"
main train.sh "$root" "$@"
