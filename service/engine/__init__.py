"""Running batches: ONNX Runtime sessions, CUDA graphs, loaded models."""
