"""From a checkpoint to a bundle: the fused ONNX graph, its precision, and the proof that it answers the same."""

import bert  # noqa: F401 - before any module of this package imports onnxruntime: it turns usage reports off
