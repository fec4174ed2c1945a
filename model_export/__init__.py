"""From a checkpoint to a bundle: the fused ONNX graph, its precision, and the proof that it answers the same."""
