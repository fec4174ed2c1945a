#!/usr/bin/env bash
# make_bundles.sh: builds the demo bundles from models/, unless bundles/ already holds those of this code.
#   PRECISION  auto, fp32, fp16 or int8 (default: what bert-export writes by itself, which is auto)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

code=$(fingerprint model_export bert/bundle.py bert/manifest.py bert/self_test.py bert/checkpoint/weights.py bert/checkpoint/lora.py)
wanted="$code $(fingerprint models) ${PRECISION:-}"
if [ "$(cat bundles/.made-from 2>/dev/null || true)" = "$wanted" ]; then exit 0; fi

scripts/make_venv.sh serve
say "Building the demo bundles in bundles/, once."
start=$SECONDS
# bert-export leaves bundles of the same model alone, so those of other code are removed here.
if [ "$(cat bundles/.made-by 2>/dev/null || true)" != "$code" ]; then
  rm -rf bundles/sentiment bundles/ner bundles/qa bundles/similarity
fi
mkdir -p bundles
printf '%s\n' "$code" >bundles/.made-by
.venv-serve/bin/bert-export --demo --out bundles ${PRECISION:+--precision "$PRECISION"} \
  || die "the demo bundles were not built" "read the message above; then make serve again"
printf '%s\n' "$wanted" >bundles/.made-from
say "Bundles built in $((SECONDS - start)) s."
