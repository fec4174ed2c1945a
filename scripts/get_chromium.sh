#!/usr/bin/env bash
# get_chromium.sh: installs Chromium for the tests of the pages, where that takes no question: Debian or Ubuntu, as root.
# Anywhere else it says what to do, and those tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if [ -n "${CHROMIUM:-}" ] || command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  say "No Chromium is installed: the tests of the pages will be skipped (Debian, Ubuntu: apt-get install chromium)."
  exit 0
fi
log=$(mktemp)
install='apt-get update -q && apt-get install -qy --no-install-recommends chromium fonts-dejavu-core'
DEBIAN_FRONTEND=noninteractive progress "Installing Chromium" "$log" timeout 600 sh -c "$install" ||
  say "Chromium could not be installed: the tests of the pages will be skipped."
rm -f "$log"
