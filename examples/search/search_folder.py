"""Search the text files of a folder by meaning: vectors from POST /embed, nearest neighbours by FAISS.

With a sparse model (SPLADE and its like) a second list by shared terms is merged with the first, and a cross-encoder may
put the best of both in order.

pip install faiss-cpu numpy
python examples/search/search_folder.py http://127.0.0.1:8000 notes "who repairs the lift?" [--sparse NAME] [--reranker NAME]
"""

import argparse
import io
import json
from collections import defaultdict
from pathlib import Path
from urllib.request import Request, urlopen

import faiss
import numpy as np

AT_ONCE = 64
"""Texts of a request."""


def post(url: str, **body: object) -> bytes:
    """Return the answer to a request."""
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=300) as response:
        return response.read()


def paragraphs(folder: Path) -> list[str]:
    """Return the parts of all files between empty lines."""
    files = sorted(folder.rglob("*.txt"))
    return [part.strip() for file in files for part in file.read_text().split("\n\n") if part.strip()]


class Search:
    """Paragraphs with their vectors."""

    def __init__(self, url: str, texts: list[str], sparse: str = "", reranker: str = "") -> None:
        """Ask for the vectors of all texts."""
        self.url, self.texts, self.sparse, self.reranker = url, texts, sparse, reranker
        vectors = np.concatenate([self.dense(texts[i : i + AT_ONCE]) for i in range(0, len(texts), AT_ONCE)])
        self.index = faiss.IndexFlatIP(vectors.shape[1])  # the dot product of unit vectors is their cosine
        self.index.add(vectors)
        self.terms = defaultdict[int, list[tuple[int, float]]](list)  # index of a term → texts that have it
        for start in range(0, len(texts) if sparse else 0, AT_ONCE):
            for number, found in enumerate(self.weights(texts[start : start + AT_ONCE], "document"), start):
                for term, weight in found.items():
                    self.terms[term].append((number, weight))

    def dense(self, texts: list[str]) -> np.ndarray:
        """Return a row for each text."""
        return np.load(
            io.BytesIO(post(f"{self.url}/embed", text=texts, truncate=True, encoding_format="binary"))
        )

    def weights(self, texts: list[str], side: str) -> list[dict[int, float]]:
        """Return the weight of each term of each text."""
        options = {"model": self.sparse, "vectors": "sparse", "side": side, "truncate": True}
        results = json.loads(post(f"{self.url}/embed", text=texts, **options))["results"]
        found = (each["sparse"] for each in results)
        return [dict(zip(each["indices"], each["values"], strict=True)) for each in found]

    def find(self, query: str, count: int = 10) -> list[int]:
        """Return the numbers of the paragraphs that fit best."""
        (ranked,) = self.index.search(self.dense([query]), count)[1]
        lists = [[int(number) for number in ranked if number >= 0]]
        if self.sparse:
            scores = defaultdict[int, float](float)
            for term, weight in self.weights([query], "query")[0].items():
                for number, other in self.terms[term]:
                    scores[number] += weight * other
            lists.append(sorted(scores, key=scores.get, reverse=True)[:count])
        merged = defaultdict[int, float](float)  # reciprocal rank fusion
        for each in lists:
            for rank, number in enumerate(each):
                merged[number] += 1 / (60 + rank)
        best = sorted(merged, key=merged.get, reverse=True)[:count]
        if self.reranker:
            asked = {"query": query, "candidates": [self.texts[i] for i in best], "model": self.reranker}
            ranked = json.loads(post(f"{self.url}/rerank", **asked, truncate=True))["results"]
            best = [best[each["index"]] for each in ranked]
        return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("query")
    parser.add_argument("--sparse", default="")
    parser.add_argument("--reranker", default="")
    given = parser.parse_args()
    search = Search(given.url, paragraphs(given.folder), given.sparse, given.reranker)
    for number in search.find(given.query):
        print(json.dumps(search.texts[number], ensure_ascii=False))
