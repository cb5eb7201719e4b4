#!/usr/bin/env bash
# docker/run.sh nemo_rl|cpu COMMAND...: run COMMAND in the image nemo-ada:<which>, in this folder, as you.
# Where this folder is a checkout of the project, its code runs and not the image's copy.
# Environment: DOCKER (docker), GPUS (for docker's --gpus: all, device=0, ..., none; by default all where nvidia-smi finds
# one), HF_HOME (mounted when set), WANDB_API_KEY and HF_TOKEN (passed on when set).
set -euo pipefail
case ${1:-} in
  nemo_rl | cpu) which=$1; shift ;;
  *) echo "usage: docker/run.sh nemo_rl|cpu COMMAND..." >&2; exit 2 ;;
esac
options=(--rm --init --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 --user "$(id -u):$(id -g)"
  --cap-drop=ALL --security-opt=no-new-privileges --env HOME=/tmp --env WANDB_API_KEY --env HF_TOKEN --volume "$PWD:/workspace" --workdir /workspace)
if [[ -z ${GPUS:-} ]]; then GPUS=$(if nvidia-smi -L >/dev/null 2>&1; then echo all; else echo none; fi); fi
if [[ $which != cpu && $GPUS != none ]]; then options+=(--gpus "$GPUS"); fi
if [[ -r nemo_ada/__init__.py ]]; then options+=(--env PYTHONPATH=/workspace); fi
if [[ -n ${HF_HOME:-} ]]; then options+=(--env HF_HOME=/huggingface --volume "$HF_HOME:/huggingface"); fi
exec "${DOCKER:-docker}" run "${options[@]}" "nemo-ada:$which" "$@"
