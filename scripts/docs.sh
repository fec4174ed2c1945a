#!/usr/bin/env bash
# docs.sh build|serve: makes .venv-docs with mkdocs, once, then builds the documentation into site/, or serves it while you write.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

venv=.venv-docs log=$PWD/.venv-docs.log
made_from="$(fingerprint pyproject.toml requirements scripts/docs.sh) $PWD"
if [ "$(cat "$venv/.made-from" 2>/dev/null || true)" != "$made_from" ]; then
  rm -rf "$venv"
  progress "Making $venv" "$log" "${PYTHON:-python3}" -m venv "$venv" || die "could not make $venv" "look at $log"
  progress "Installing requirements/docs.txt" "$log" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    -c requirements/constraints.txt -r requirements/docs.txt -e . \
    || die "pip could not install: the whole log is $log" "if it was the network, try the same command again"
  printf '%s\n' "$made_from" >"$venv/.made-from"
  rm -f "$log"
fi
# The warning is about mkdocs 2, which nothing here installs.
export NO_MKDOCS_2_WARNING=1
exec "$venv/bin/mkdocs" "${@:-build}"
