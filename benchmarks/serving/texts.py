"""The texts that a benchmark sends: those of a file, or made up with the lengths of real ones."""

import random
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

MIXTURE = ((0.6, 4, 28), (0.3, 8, 18), (0.1, 80, 200))
"""Share, fewest and most words: sentences, questions, paragraphs. About 34 tokens on average."""


def read_texts(file: Path) -> list[str]:
    """Return the texts of a file, one a line."""
    texts = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [text for text in texts if text]


def made_up_texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of common English words; the same for a seed."""
    chance = random.Random(seed)
    kinds = chance.choices(MIXTURE, weights=[share for share, _, _ in MIXTURE], k=count)
    return [" ".join(chance.choices(COMMON, k=chance.randint(fewest, most))) for _, fewest, most in kinds]
