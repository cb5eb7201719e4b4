#!/usr/bin/env bash
# docker/build.sh nemo_rl|nemo_rl-v0.8.0|cpu: build the image nemo-ada:<which>. nemo_rl is on NeMo-RL v0.7.0, and
# nemo_rl-v0.8.0 on v0.8.0. They stay beside each other.
# Environment:
#   DOCKER           docker (the default), podman or buildah
#   CA_FILE          certificate authorities of the site, PEM
#   PIP_INDEX_URL    its package index
#   PIP_FIND_LINKS   for cpu: a folder with wheels, such as torch's CPU build
#   NEMO_RL_VERSION  for nemo_rl: the tag of NVIDIA's image; nemo_rl.Dockerfile has the default
#   PYTHON_VERSION   for cpu: the tag of Docker's Python image; cpu.Dockerfile has the default
# A tag with a digest, such as v0.7.0@sha256:..., is one image for ever.
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:-}
docker=${DOCKER:-docker}
case $which in
  nemo_rl | cpu) file=$which ;;
  nemo_rl-v0.8.0) file=nemo_rl NEMO_RL_VERSION=${NEMO_RL_VERSION:-v0.8.0} ;;
  *) echo "usage: docker/build.sh nemo_rl|nemo_rl-v0.8.0|cpu (found: '$which')" >&2; exit 2 ;;
esac
options=()
if [[ -n ${CA_FILE:-} ]]; then
  [[ -r $CA_FILE ]] || { echo "CA_FILE=$CA_FILE cannot be read" >&2; exit 2; }
  options+=(--secret "id=ca,src=$CA_FILE")
fi
if [[ $which == cpu && -n ${PIP_FIND_LINKS:-} ]]; then
  [[ -d $PIP_FIND_LINKS ]] || { echo "PIP_FIND_LINKS=$PIP_FIND_LINKS is not a folder; leave it empty" >&2; exit 2; }
  options+=(--build-context "wheels=$PIP_FIND_LINKS")
fi
if [[ $file == cpu ]]; then base=PYTHON_VERSION; else base=NEMO_RL_VERSION; fi
for name in PIP_INDEX_URL "$base"; do
  if [[ -n ${!name:-} ]]; then options+=(--build-arg "$name=${!name}"); fi
done
case $(basename "$docker") in
  podman | buildah) "$docker" build "${options[@]}" --file "docker/$file.Dockerfile" --tag "nemo-ada:$which" . ;;
  *) "$docker" buildx build "${options[@]}" --file "docker/$file.Dockerfile" --tag "nemo-ada:$which" --load . ;;
esac
