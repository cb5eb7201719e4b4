#!/usr/bin/env bash
# docker/build.sh nemo_rl|pytorch|cpu: build the image nemo-ada:<which>. Environment: DOCKER (docker).
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:-}
docker=${DOCKER:-docker}
case $which in
  nemo_rl | cpu) ;;
  pytorch)
    "$docker" buildx build --file docker/Dockerfile.ngc_pytorch --tag nemo-rl-pytorch:v0.7.0-25.06 --load \
      --build-arg NRL_GIT_REF=v0.7.0 --build-arg BASE_IMAGE=nvcr.io/nvidia/pytorch:25.06-py3 \
      "https://github.com/NVIDIA-NeMo/RL.git#v0.7.0"
    ;;
  *) echo "usage: docker/build.sh nemo_rl|pytorch|cpu (found: '$which')" >&2; exit 2 ;;
esac
"$docker" buildx build --file "docker/$which.Dockerfile" --tag "nemo-ada:$which" --load .
