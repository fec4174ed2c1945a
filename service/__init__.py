"""Serving: request → tokenise → scheduler → packed batch → engine → decode → response.

Imports run one way: cli → app → routes → pipeline → scheduler → engine → bert. No torch, no onnx, no
safetensors.
"""
