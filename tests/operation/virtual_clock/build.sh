#!/bin/sh
# Build virtual_clock in the folder $1 from the sources of Prometheus 2.42 and of its libraries in Debian 12, with the Go
# compiler of Debian 12. Nothing is installed: packages are only unpacked, and apt uses lists of its own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
suite=bookworm
# What the packages of Prometheus that main.go uses import; apt adds what these need.
libraries='golang-github-cespare-xxhash-dev golang-github-dennwc-varint-dev golang-github-edsrzf-mmap-go-dev
    golang-github-go-kit-log-dev golang-github-go-openapi-strfmt-dev golang-github-gogo-protobuf-dev
    golang-github-golang-snappy-dev golang-github-grafana-regexp-dev golang-github-oklog-ulid-dev
    golang-github-pkg-errors-dev golang-github-prometheus-alertmanager-dev golang-github-prometheus-client-golang-dev
    golang-github-prometheus-common-dev golang-go.uber-atomic-dev golang-golang-x-exp-dev golang-golang-x-sync-dev
    golang-golang-x-sys-dev golang-golang-x-text-dev golang-gopkg-yaml.v3-dev golang-opentelemetry-otel-dev
    golang-uber-goleak-dev'

. /etc/os-release
[ "$ID" = debian ] || { echo "$PRETTY_NAME: virtual_clock can be built on Debian only" >&2; exit 1; }
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | head -n 1)
[ -n "$archive" ] || { echo "apt knows no package lists of $VERSION_CODENAME: run apt-get update" >&2; exit 1; }

mkdir -p "$1"
cd "$1"
folder=$PWD
rm -rf apt root && mkdir -p apt/lists/partial apt/cache/archives/partial root
for kind in deb deb-src; do
    echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main"
done >apt/sources.list
apt() {
    program=$1
    shift
    "$program" -qq -o Dir::Etc::sourcelist="$folder/apt/sources.list" -o Dir::Etc::sourceparts=- \
        -o APT::Sandbox::User=root -o Dir::State::lists="$folder/apt/lists" -o Dir::Cache="$folder/apt/cache" "$@"
}
apt apt-get update
cd apt
# shellcheck disable=SC2086  # a list of words
needed=$(apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances $libraries | grep '^golang' | grep -v golang-protobuf-1-3 | sort -u)
# shellcheck disable=SC2086
apt apt-get download golang-1.19-go golang-1.19-src $needed
apt apt-get source --download-only prometheus
for package in ./*.deb; do dpkg -x "$package" ../root; done
prometheus=../root/usr/share/gocode/src/github.com/prometheus/prometheus
mkdir -p "$prometheus"
tar -xf prometheus_*.orig.tar.* -C "$prometheus" --strip-components=1
tar -xf prometheus_*.debian.tar.* -C "$prometheus"
cd "$prometheus"
while read -r patch; do
    case $patch in ''|'#'*) ;; *) patch -s -p1 <"debian/patches/$patch" ;; esac
done <debian/patches/series
cd "$folder"
GOROOT=$folder/root/usr/lib/go-1.19 GOPATH=$folder/root/usr/share/gocode GOCACHE=$folder/apt/build \
    GO111MODULE=off GOFLAGS=-p=1 CGO_ENABLED=0 \
    root/usr/lib/go-1.19/bin/go build -o virtual_clock "$here/main.go"
rm -rf apt root
