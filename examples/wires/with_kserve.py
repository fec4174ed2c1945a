"""Classify with KServe's client, over the Open Inference Protocol and over V1.

pip install kserve
python examples/wires/with_kserve.py http://127.0.0.1:8000 sentiment
"""

import asyncio
import json
import sys

from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

TEXT = "A warm film."


async def main(url: str, model: str) -> None:
    """Ask the same over both protocols."""
    v2 = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    texts = InferInput("text", [1], "BYTES", data=[TEXT])
    answer = await v2.infer(url, InferRequest(model_name=model, infer_inputs=[texts]), model_name=model)
    labels = next(output.data for output in answer.outputs if output.name == "label")
    v1 = InferenceRESTClient(RESTConfig(protocol="v1", timeout=30))
    found = await v1.infer(url, {"instances": [TEXT]}, model_name=model)
    ready = await v2.is_server_ready(url) and await v2.is_model_ready(url, model)
    print(json.dumps({"v2": list(labels), "v1": found["predictions"], "ready": ready}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
