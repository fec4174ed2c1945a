"""Serving: request → tokenise → scheduler → packed batch → engine → decode → response.

Imports run one way: cli → app → routes → pipeline → scheduler → engine → bert. No torch, no onnx, no
safetensors.
"""

import bert  # noqa: F401 - before any module of this package imports onnxruntime: it turns usage reports off
