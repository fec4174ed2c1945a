import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "datasets", "matplotlib", "pandas", "transformers")
CODE = f"""
import sys
import training.data.hub, training.data.unanswerable, training.report, training.progress, training.tensorboard
print(",".join(name for name in {HEAVY} if name in sys.modules))
"""


def test_reading_data_and_writing_reports_loads_no_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
