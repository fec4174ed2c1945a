"""The export of `gliner` itself, which `fast-gliner` reads: FOLDER/onnx/model.onnx.

PYTHON -m benchmarks.serve.baselines.export_gliner FOLDER
"""

import sys

import gliner


def main() -> None:
    """Write the graph."""
    model = gliner.GLiNER.from_pretrained(sys.argv[1], local_files_only=True)
    model.export_to_onnx(f"{sys.argv[1]}/onnx")


if __name__ == "__main__":
    main()
