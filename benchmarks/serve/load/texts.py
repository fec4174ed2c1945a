"""The texts and documents that a benchmark sends: those of a file, or made up with the lengths of real ones."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

WORDS = """
the of and a to in is was he for it with as his on be at by i this had not are but from or have an they
which one you were her all she there would their we him been has when who will more no if out so said
what up its about into than them can only other new some could time these two may then do first any my
now such like our over man me even most made after also did many before must through years where much
your way well down should because each just those people how too little state good very make world still
own see men work long get here between both life being film story acting funny warm dull clever slow
moving script scene music camera river city country company president
"""
COMMON = WORDS.split()

Kinds = Sequence[tuple[float, int, int]]
"""Share, fewest and most words of each kind of text."""
MIXTURE = ((0.6, 4, 28), (0.3, 8, 18), (0.1, 80, 200))
"""Sentences, questions, paragraphs. About 34 tokens on average."""


SENTENCES = ((1.0, 4, 28),)
"""Sentences alone, in the form of MIXTURE."""

FACTS = (
    ("The old museum by the river was opened by Anna Weber in 1923.", "Who opened the old museum?"),
    ("The first bridge over the river was built in 1874.", "When was the first bridge built?"),
    ("The company was founded in Lisbon by two brothers.", "Where was the company founded?"),
    ("The president of the country was Maria Santos.", "Who was the president of the country?"),
)
"""A sentence that made-up documents hold somewhere, and what is asked about it."""


def read_texts(file: Path) -> list[str]:
    """Return the texts of a file, one a line."""
    texts = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [text for text in texts if text]


def made_up_texts(count: int, seed: int = 0, mixture: Kinds = MIXTURE) -> list[str]:
    """Return texts of common English words; the same for a seed."""
    chance = random.Random(seed)
    kinds = chance.choices(mixture, weights=[share for share, _, _ in mixture], k=count)
    return [" ".join(chance.choices(COMMON, k=chance.randint(fewest, most))) for _, fewest, most in kinds]


def made_up_documents(
    count: int, fewest: int = 500, most: int = 4000, seed: int = 0
) -> list[tuple[str, str]]:
    """Return questions and documents of so many words, a fact among them; the same for a seed."""
    chance = random.Random(seed)
    documents = []
    for number in range(count):
        fact, question = FACTS[number % len(FACTS)]
        documents.append((question, made_up_document(chance.randint(fewest, most), fact, chance)))
    return documents


def made_up_document(words: int, fact: str, chance: random.Random) -> str:
    """Return sentences of common words, so many words in all, with the fact between two of them."""
    sentences = []
    while words > 0:
        length = min(words, chance.randint(8, 24))
        sentences.append(" ".join(chance.choices(COMMON, k=length)).capitalize() + ".")
        words -= length
    sentences.insert(chance.randrange(len(sentences) + 1), fact)
    return " ".join(sentences)


def read_documents(file: Path) -> list[tuple[str, str]]:
    """Return the first question of each article of a SQuAD file, with the whole article, its paragraphs joined."""
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    documents = []
    for article in articles:
        paragraphs = [paragraph for paragraph in article["paragraphs"] if paragraph["qas"]]
        if paragraphs:
            context = "\n".join(paragraph["context"] for paragraph in article["paragraphs"])
            documents.append((paragraphs[0]["qas"][0]["question"], context))
    return documents
