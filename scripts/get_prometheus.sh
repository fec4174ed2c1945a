#!/usr/bin/env bash
# get_prometheus.sh: installs Prometheus and Alertmanager for the tests of alerts and dashboard, where that takes no question:
# Debian or Ubuntu, as root. Anywhere else it says what to do, and those tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

packages="prometheus prometheus-alertmanager"
if command -v promtool >/dev/null && command -v prometheus-alertmanager >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  say "No Prometheus is installed: the tests of alerts and dashboard will be skipped (Debian, Ubuntu: apt-get install $packages)."
  exit 0
fi
log=$(mktemp)
install="apt-get update -q && apt-get install -qy --no-install-recommends $packages"
DEBIAN_FRONTEND=noninteractive progress "Installing Prometheus" "$log" timeout 600 sh -c "$install" ||
  say "Prometheus could not be installed: the tests of alerts and dashboard will be skipped."
rm -f "$log"
