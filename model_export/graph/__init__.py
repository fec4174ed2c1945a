"""The ONNX graph: BERT operator by operator, for the CPU, for CUDA and in 8 bits."""
