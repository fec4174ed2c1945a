#!/usr/bin/env bash
# serve.sh: sets up what is missing, then serves the bundles. HOST and PORT say where; arguments go to bert-serve.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

host=${HOST:-127.0.0.1}
port=${PORT:-8000}
case $port in '' | *[!0-9]*) die "PORT=$port is not a number" "make serve PORT=8000" ;; esac
if (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; then
  die "something is already listening on $host port $port" "stop it, or take another: make serve PORT=$((port + 1))"
fi

if command -v flock >/dev/null; then # macOS has none
  exec 9<.
  flock -n 9 || { say "Waiting for another start in this folder, which is setting up."; flock 9; }
fi
scripts/make_venv.sh serve
scripts/make_bundles.sh
exec 9<&-
exec .venv-serve/bin/bert-serve --host "$host" --port "$port" --bundles bundles "$@"
