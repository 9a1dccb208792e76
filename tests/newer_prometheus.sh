#!/bin/sh
# Unpack the newest Prometheus with its promtool, and the newest VictoriaMetrics, that this machine's distribution has, into the folder $1.
# The archive is the one that apt is configured with; apt finds the version (those of testing come and go) and checks
# the signature, with lists of its own: nothing that apt knows of this machine is changed.
set -eu
folder=$1
. /etc/os-release
case $ID in
    debian) suite=testing component=main keys=/usr/share/keyrings/debian-archive-keyring.gpg ;;
    ubuntu) suite=devel component=universe keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg ;;
    *) echo "$PRETTY_NAME: put a Prometheus 3 with promtool into $folder/usr/bin yourself" >&2; exit 1 ;;
esac
# shellcheck disable=SC2016  # apt fills the placeholder in
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | head -n 1)
[ -n "$archive" ] || { echo "apt knows no package lists of $VERSION_CODENAME: run apt-get update" >&2; exit 1; }

mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
cd "$folder"
echo "deb [signed-by=$keys] $archive $suite $component" >apt/sources.list
apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$PWD/apt/sources.list" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root \
        -o Dir::State::lists="$PWD/apt/lists" -o Dir::Cache="$PWD/apt/cache" "$@"
}
apt update
apt download prometheus promtool victoria-metrics
for package in ./*.deb; do dpkg -x "$package" .; done
rm -r apt ./*.deb
