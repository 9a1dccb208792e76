#!/bin/sh
# Build the image of the last commit twice without caches, compare the layers, and lint the Dockerfile:
# verify_image.sh docker|podman|buildah. The base image must be here already, or come from its registry.
set -eu
builder=${1:-docker}
command -v "$builder" >/dev/null || { echo "$builder is not installed: give docker, podman or buildah" >&2; exit 2; }
epoch=$(git log -1 --format=%ct)
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
git archive HEAD | tar -x -C "$source"

built() {
  case $builder in
    buildah) buildah build --no-cache --build-arg SOURCE_DATE_EPOCH="$epoch" --tag "$1" "$source" >&2 ;;
    *) "$builder" build --no-cache --build-arg SOURCE_DATE_EPOCH="$epoch" --tag "$1" "$source" >&2 ;;
  esac
  case $builder in
    buildah) buildah inspect --type image --format '{{.OCIv1.RootFS.DiffIDs}}' "$1" ;;
    *) "$builder" image inspect --format '{{.RootFS.Layers}}' "$1" ;;
  esac
}

first=$(built gpu-exporter:verify-1)
second=$(built gpu-exporter:verify-2)
if [ "$first" != "$second" ]; then
  printf 'two builds of one commit differ:\n%s\n%s\n' "$first" "$second" >&2
  exit 1
fi
echo "two builds of $(git rev-parse --short HEAD) have the same layers: $first"
if command -v hadolint >/dev/null; then
  hadolint Dockerfile && echo "hadolint has no complaint"
else
  echo "hadolint is not installed, so the Dockerfile was not linted" >&2
fi
