#!/bin/sh
# Start an image, and wait until its health check passes: smoke.sh IMAGE [ARGUMENT…]
set -eu
container=$(docker run --detach "$@")
trap 'docker rm --force "$container" >/dev/null' EXIT
for _ in $(seq 30); do
  if why=$(docker exec "$container" python /opt/gpu-exporter/healthcheck.py 2>&1); then
    echo "$1 is healthy"
    exit
  fi
  sleep 1
done
docker logs "$container" >&2
echo "$1 is not healthy: $why" >&2
exit 1
