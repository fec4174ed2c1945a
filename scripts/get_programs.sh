#!/usr/bin/env bash
# get_programs.sh: installs the programs that tests run beside the service, where that takes no question: Debian or Ubuntu, as root.
# Anywhere else it says what to do, and those tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

packages="prometheus prometheus-alertmanager nginx-light libfaketime"
missing=""
for name in promtool prometheus-alertmanager nginx /usr/lib/*/faketime/libfaketimeMT.so.1; do
  command -v "$name" >/dev/null || [ -e "$name" ] || missing="$missing ${name##*/}"
done
if [ -z "$missing" ]; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  say "Not installed:$missing. Tests of alerts, of nginx and of the clock will be skipped (Debian, Ubuntu: apt-get install $packages)."
  exit 0
fi
log=$(mktemp)
install="apt-get update -q && apt-get install -qy --no-install-recommends $packages"
DEBIAN_FRONTEND=noninteractive progress "Installing$missing" "$log" timeout 600 sh -c "$install" ||
  say "They could not be installed: tests of alerts, of nginx and of the clock will be skipped."
rm -f "$log"
