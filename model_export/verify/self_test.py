"""The answers that a bundle carries with it, so that the service can tell whether its graphs answer alike there."""

import itertools
from collections.abc import Mapping

from bert.checkpoint.weights import Checkpoint
from bert.processor import instructions
from bert.self_test import SelfTest, encode
from bert.tasks.registry import TASKS
from bert.tasks.task import Reads
from model_export.verify.texts import make_text, texts_file
from model_export.verify.verified_graph import VerifiedGraph

TEXTS = (4, 5, 12, 18, 28, 46, 47)
"""Indices into the shipped texts: short ones, long ones, and one with a line break and a tab."""
QUESTIONS = 2
"""Number of shipped questions, with their paragraphs."""


TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "int8": 5e-3}
"""Largest relative error by precision. In 8 bits the last bit of a float32 sum can move a value over a rounding edge: there
a graph is allowed half of what it was away from the checkpoint, where that is more."""


def self_test(checkpoint: Checkpoint, graphs: Mapping[str, VerifiedGraph]) -> SelfTest:
    """Ask the graphs, by the names of their files, and return texts and answers."""
    spec, content = checkpoint.spec, texts_file()
    task = TASKS[spec.task]
    chosen = [content["texts"][n] for n in TEXTS]
    asked = [(row["question"], row["context"]) for row in content["questions"][:QUESTIONS]]
    texts: list[tuple[str, ...]]
    if task.reads(spec) is Reads.QUESTION:
        texts = [*asked, *((asked[0][0], text) for text in chosen)]
    elif task.reads(spec) is Reads.PAIR:
        texts = [*asked, *itertools.pairwise(chosen)]
    else:
        texts = [(text,) for text in [*chosen, *(context for _, context in asked)]]
    encoded = [make_text(encoding, spec.task) for encoding in encode(texts, checkpoint.tokenizer, spec)]
    answers, tolerances = {}, {}
    for file, candidate in graphs.items():
        found, precision = candidate.exported.alone(encoded), candidate.exported.precision
        found = [task.shorten(scores) for scores in found]
        answers[file], tolerances[file] = task.self_test_scores(found), TOLERANCE[precision]
        if precision == "int8":
            tolerances[file] = max(tolerances[file], candidate.parity["relative_error"] / 2)
    return SelfTest(tuple(texts), answers, tolerances, instructions())
