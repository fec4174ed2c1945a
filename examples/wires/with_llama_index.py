"""Embed and rank with LlamaIndex, over the wires of OpenAI and Text Embeddings Inference.

pip install llama-index-embeddings-openai-like llama-index-embeddings-text-embeddings-inference
python examples/wires/with_llama_index.py http://127.0.0.1:8000 similarity
"""

import json
import sys

from llama_index.core.base.embeddings.base import similarity
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

TEXTS = ["I forgot my login.", "The shop is open on Sunday.", "It is warm in Munich."]


def main(url: str, model: str) -> None:
    """Compare a question with a few sentences, over both wires."""
    openai = OpenAILikeEmbedding(model_name=model, api_base=f"{url}/v1", api_key="any", embed_batch_size=64)
    tei = TextEmbeddingsInference(model_name=model, base_url=f"{url}/tei/{model}", auth_token="any")
    for embeddings in (openai, tei):
        asked = embeddings.get_query_embedding("How do I reset my password?")
        vectors = embeddings.get_text_embedding_batch(TEXTS)
        print(json.dumps([float(similarity(asked, vector)) for vector in vectors]))


if __name__ == "__main__":
    main(*sys.argv[1:3])
