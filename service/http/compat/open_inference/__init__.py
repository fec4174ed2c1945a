"""Parts of the Open Inference Protocol: tensors of requests and answers, and Triton's repository of models."""
