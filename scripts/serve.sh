#!/usr/bin/env bash
# serve.sh: sets up what is missing, then serves the bundles. HOST and PORT say where; arguments go to bert-serve.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

host=${HOST:-127.0.0.1}
port=${PORT:-8000}
case $port in '' | *[!0-9]*) die "PORT=$port is not a number" "PORT=8000 make serve" ;; esac

scripts/make_venv.sh serve
python=.venv-serve/bin/python
$python scripts/announce.py check "$host" "$port"
scripts/make_bundles.sh

# exec keeps the process id, so the announcer sees when the service ends before it is ready.
$python scripts/announce.py ready "$host" "$port" --pid $$ &
exec .venv-serve/bin/bert-serve --host "$host" --port "$port" --bundles bundles "$@"
