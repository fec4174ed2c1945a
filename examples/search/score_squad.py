"""Score the search of search_folder.py: paragraphs of a SQuAD file are searched by its questions.

python examples/search/score_squad.py http://127.0.0.1:8000 dev-v1.1.json [--sparse NAME] [--reranker NAME]
"""

import argparse
import json
import random
import time
from pathlib import Path

from search_folder import Search

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    parser.add_argument("--sparse", default="")
    parser.add_argument("--reranker", default="")
    parser.add_argument("--questions", type=int, default=300, help="drawn from all with seed 0")
    given = parser.parse_args()
    articles = json.loads(given.file.read_text(encoding="utf-8"))["data"]
    paragraphs = [each for article in articles for each in article["paragraphs"]]
    asked = [(qa["question"], right) for right, each in enumerate(paragraphs) for qa in each["qas"]]
    random.Random(0).shuffle(asked)
    asked = asked[: given.questions]
    search = Search(given.url, [each["context"] for each in paragraphs], given.sparse, given.reranker)
    began = time.monotonic()
    found = [search.find(question) for question, _ in asked]
    a_query_ms = (time.monotonic() - began) / len(asked) * 1000
    for count in (1, 10):
        hits = sum(right in each[:count] for each, (_, right) in zip(found, asked, strict=True))
        print(f"recall@{count} {hits / len(asked):.3f}")
    print(f"{len(paragraphs)} paragraphs, {len(asked)} questions, {a_query_ms:.1f} ms a question")
