#!/usr/bin/env bash
# make_bench_venvs.sh: makes .venv-bench and .venv-infinity, the environments of the servers that this one is compared
# with, once. They are apart from .venv because infinity wants older versions of what this project uses.
#
#   TORCH, TORCH_INDEX  as for make_venv.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

torch=${TORCH:-torch==2.13.0}
made_from="$(fingerprint pyproject.toml requirements scripts/make_bench_venvs.sh) $PWD $torch"

# make_venv FOLDER: does nothing while what it was made from is unchanged; else makes it and runs the rest with `venv` set.
is_current() { [ "$(cat "$1/.made-from" 2>/dev/null || true)" = "$made_from" ]; }

begin() {
  venv=$1
  log=$PWD/$venv.log
  rm -rf "$venv"
  progress "Making $venv" "$log" .venv/bin/python -m venv "$venv" || die "could not make $venv" "look at $log"
  # First and by itself: what is installed after it asks for torch too and would take another build.
  pip_install "Installing $torch" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
}

pip_install() { # title, arguments of pip install
  local title=$1
  shift
  progress "$title" "$log" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" || die \
    "pip could not install: the whole log is $log" "if it was the network, try the same command again"
}

finish() {
  printf '%s\n' "$made_from" >"$venv/.made-from"
  rm -f "$log"
}

if ! is_current .venv-bench; then
  begin .venv-bench
  pip_install "Installing mosec, LitServe and transformers" -c requirements/constraints.txt -e ".[bench]"
  finish
fi
if ! is_current .venv-infinity; then
  begin .venv-infinity
  pip_install "Installing infinity" -r requirements/bench-infinity.txt
  finish
fi
