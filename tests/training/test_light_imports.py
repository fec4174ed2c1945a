import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "datasets", "matplotlib", "pandas", "transformers")
CODE = f"""
import sys
import training.labelled.hub, training.report.checks, training.engine.progress
print(",".join(name for name in {HEAVY} if name in sys.modules))
"""

PROGRAMS = """
import sys
import training.finetune, training.pretrain
print(",".join(name for name in ("peft", "transformers", "datasets") if name in sys.modules))
"""


def test_reading_data_and_writing_reports_loads_no_heavy_library() -> None:
    assert found_loaded(CODE) == ""


def test_training_loads_peft_and_transformers_only_where_they_are_used() -> None:
    assert found_loaded(PROGRAMS) == ""


def found_loaded(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
