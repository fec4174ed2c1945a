#!/usr/bin/env bash
# make_client_venvs.sh: makes .venv-clients, .venv-gliner, .venv-vectors and .venv-ray, which add the file of requirements/ of that
# name to what .venv has, and .venv-frameworks from requirements/frameworks.txt alone, once. Does nothing while these are unchanged.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

made_from="$(fingerprint requirements/clients.txt requirements/frameworks.txt requirements/gliner.txt requirements/ray.txt \
  requirements/vectors.txt \
  scripts/make_client_venvs.sh) $PWD"

make_venv() { # folder, requirements
  local venv=$1 log=$PWD/$1.log
  if [ "$(cat "$venv/.made-from" 2>/dev/null || true)" = "$made_from" ]; then return; fi
  rm -rf "$venv"
  progress "Making $venv" "$log" .venv/bin/python -m venv "$venv" || die "could not make $venv" "look at $log"
  if [ "$venv" != .venv-frameworks ]; then
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
  fi
  progress "Installing $2" "$log" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -r "$2" || die \
    "pip could not install: the whole log is $log" "if it was the network, try the same command again"
  printf '%s\n' "$made_from" >"$venv/.made-from"
  rm -f "$log"
}

make_venv .venv-clients requirements/clients.txt
make_venv .venv-frameworks requirements/frameworks.txt
make_venv .venv-gliner requirements/gliner.txt
make_venv .venv-ray requirements/ray.txt
make_venv .venv-vectors requirements/vectors.txt
