#!/usr/bin/env bash
# docker/build.sh nemo_rl|cpu: build the image nemo-ada:<which>. Environment: DOCKER (docker).
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:-}
docker=${DOCKER:-docker}
case $which in
  nemo_rl | cpu) ;;
  *) echo "usage: docker/build.sh nemo_rl|cpu (found: '$which')" >&2; exit 2 ;;
esac
"$docker" buildx build --file "docker/$which.Dockerfile" --tag "nemo-ada:$which" --load .
