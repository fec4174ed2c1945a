"""Find documents with Haystack, over the wires of OpenAI and Text Embeddings Inference.

pip install haystack-ai huggingface-api-haystack
python examples/wires/with_haystack.py http://127.0.0.1:8000 similarity
"""

import json
import sys

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPITextEmbedder

TEXTS = ["I forgot my login.", "The shop is open on Sunday.", "It is warm in Munich."]
QUESTION = "How do I reset my password?"


def main(url: str, model: str) -> None:
    """Store a few sentences, and search with the vector that each wire gives for a question."""
    how = {"api_base_url": f"{url}/v1", "model": model, "api_key": Secret.from_token("any")}
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    documents = OpenAIDocumentEmbedder(**how, progress_bar=False).run(
        [Document(content=text) for text in TEXTS]
    )
    store.write_documents(documents["documents"])
    tei = HuggingFaceAPITextEmbedder(
        api_type="text_embeddings_inference",
        api_params={"url": f"{url}/tei/{model}"},
        token=Secret.from_token("any"),
    )
    retriever = InMemoryEmbeddingRetriever(store, top_k=2)
    for embedder in (OpenAITextEmbedder(**how), tei):
        found = retriever.run(embedder.run(QUESTION)["embedding"])["documents"]
        print(json.dumps([{"text": document.content, "score": document.score} for document in found]))


if __name__ == "__main__":
    main(*sys.argv[1:3])
