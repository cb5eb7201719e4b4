#!/usr/bin/env bash
# Writes the newest checkpoint of CONFIG's run (or RUN_DIR) for Hugging Face, after it has ended: `slurm/export.sh [OVERLAY.yaml ...] [--option=of-sbatch ...]`.
#SBATCH --job-name=ada-export
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=08:00:00
#SBATCH --mem=0
#SBATCH --output=slurm-%x-%j.log
CONFIG=${CONFIG:-configs/qwen2.5-math-7b.yaml}
root=${NEMO_ADA_HOME:-$(dirname "$0")/..}
[[ -n ${NEMO_ADA_HOME:-} || -r $root/slurm/lib.sh ]] || root=${SLURM_SUBMIT_DIR:-$root}  # SLURM runs a copy of this script
[[ -r $root/slurm/lib.sh ]] || { echo "error: no slurm/lib.sh in $root: submit from the project's root or set NEMO_ADA_HOME" >&2; exit 2; }
# shellcheck source=/dev/null
source "$root/slurm/lib.sh"
main export.sh "$root" "$@"
