#!/usr/bin/env bash
# docker/run.sh nemo_rl|nemo_rl-v0.8.0|cpu COMMAND...: run COMMAND in the image nemo-ada:<which>, in this folder, as you.
# Where this folder is a checkout of the project, its code runs and not the image's copy.
# Environment: DOCKER (docker; or podman), RUN_AS (UID:GID; by default yours), GPUS (for docker's --gpus: all, device=0,
# ..., none; by default all where nvidia-smi finds one), HF_HOME (mounted when set), WANDB_API_KEY and HF_TOKEN (passed
# on when set).
set -euo pipefail
case ${1:-} in
  nemo_rl | nemo_rl-v0.8.0 | cpu) which=$1; shift ;;
  *) echo "usage: docker/run.sh nemo_rl|nemo_rl-v0.8.0|cpu COMMAND..." >&2; exit 2 ;;
esac
RUN_AS=${RUN_AS:-$(id -u):$(id -g)}
[[ $RUN_AS =~ ^[0-9]+:[0-9]+$ ]] || { echo "RUN_AS=$RUN_AS is not UID:GID in numbers, such as 1000:1000" >&2; exit 2; }
options=(--rm --init --ipc=host --user "$RUN_AS" --cap-drop=ALL --security-opt=no-new-privileges
  --env HOME=/tmp --env USER=ada --env WANDB_API_KEY --env HF_TOKEN --volume "$PWD:/workspace" --workdir /workspace)
if [[ $which == cpu ]]; then  # kernels that vLLM and torch compile are loaded from /tmp, so it allows exec
  options+=(--read-only --tmpfs /tmp:exec)
else
  # Docker's service may raise limits; podman has its caller's rights.
  if [[ ${DOCKER:-} != *podman ]] || (ulimit -l unlimited) 2>/dev/null; then
    options+=(--ulimit memlock=-1 --ulimit stack=67108864)
  fi
  if [[ -z ${GPUS:-} ]]; then GPUS=$(if nvidia-smi -L >/dev/null 2>&1; then echo all; else echo none; fi); fi
  if [[ $GPUS != none ]]; then options+=(--gpus "$GPUS"); fi
fi
if [[ ${DOCKER:-} == *podman && $(id -u) != 0 ]]; then options+=(--userns=keep-id); fi  # else your files are nobody's there
if [[ -r nemo_ada/__init__.py ]]; then options+=(--env PYTHONPATH=/workspace/slurm/package); fi
if [[ -n ${HF_HOME:-} ]]; then options+=(--env HF_HOME=/huggingface --volume "$HF_HOME:/huggingface"); fi
exec "${DOCKER:-docker}" run "${options[@]}" "nemo-ada:$which" "$@"
