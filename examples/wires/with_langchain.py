"""Embed documents with LangChain, over OpenAI's wire.

pip install langchain-openai
python examples/wires/with_langchain.py http://127.0.0.1:8000 similarity
"""

import json
import sys

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings


def main(url: str, model: str) -> None:
    """Store a few sentences and search among them."""
    embeddings = OpenAIEmbeddings(
        model=model,
        base_url=f"{url}/v1",
        api_key="any",  # the service's own, if it has one
        check_embedding_ctx_length=False,  # else it sends token ids of OpenAI's models
        chunk_size=512,  # max_texts_per_request of the service
    )
    store = InMemoryVectorStore(embeddings)
    store.add_texts(["I forgot my login.", "The shop is open on Sunday.", "It is warm in Munich."])
    found = store.similarity_search_with_score("How do I reset my password?", k=2)
    print(json.dumps([{"text": document.page_content, "score": score} for document, score in found]))


if __name__ == "__main__":
    main(*sys.argv[1:3])
