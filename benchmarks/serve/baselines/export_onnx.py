"""The standard export: torch.onnx of transformers' model, padded, with an attention mask. FOLDER/model.onnx.

PYTHON -m benchmarks.serve.baselines.export_onnx FOLDER
"""

import sys
from pathlib import Path

import torch
import transformers

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def main() -> None:
    """Write the graph."""
    folder = Path(sys.argv[1])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    example = tuple(torch.ones((2, 16), dtype=torch.int64) for _ in INPUTS)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=512)}
    torch.onnx.export(
        model,
        kwargs=dict(zip(INPUTS, example, strict=True)),
        f=str(folder / "model.onnx"),
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamic_shapes={name: axes for name in INPUTS},
        external_data=False,
    )


if __name__ == "__main__":
    main()
