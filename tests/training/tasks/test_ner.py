"""Fine-tuning for named entities reads the text that the service gets."""

from collections.abc import Sequence

import numpy as np

from bert.data.examples import WordsExample
from bert.encoding import Encoding
from bert.nn.losses import IGNORED
from bert.tasks.ner import head_positions
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Floats
from bert.tokenizer import Tokenizer
from tests.support.tokenizers import backend_of
from training.tasks.ner import NerFinetuning

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
CHINESE = WordsExample(tuple("北京的李明"), ("B-LOC", "I-LOC", "O", "B-PER", "I-PER"), "1")
TOKENIZER = Tokenizer(backend_of("unigram"))
TASK = NerFinetuning(TOKENIZER, TaskSpec("ner", LABELS, max_tokens=64))


def test_chinese_of_a_character_a_line_is_learned_as_it_is_served() -> None:
    ((pieces,), (feature,)) = TOKENIZER.pieces(["北京的李明"]), TASK.features([CHINESE])
    (encoding,) = feature.encodings
    assert encoding.ids.tolist() == TOKENIZER.single(pieces).ids.tolist()
    heads = head_positions(encoding)
    assert (
        TOKENIZER.id_to_token(int(encoding.ids[heads[0]])) == "▁"
    )  # the label is on the lone blank, as run_ner has it
    assert feature.target[heads].tolist() == [1, 2, 0, 3, 4]
    assert np.count_nonzero(feature.target != IGNORED) == len(heads)


def test_chinese_is_scored_as_it_is_served() -> None:
    def predict(encodings: Sequence[Encoding]) -> list[Floats]:
        logits = [np.zeros((len(encoding), len(LABELS)), np.float32) for encoding in encodings]
        for encoding, rows in zip(encodings, logits, strict=True):
            rows[head_positions(encoding), [1, 2, 0, 3, 4]] = 9
        return list(logits)

    assert TASK.evaluate(predict, [CHINESE]).scores["f1"] == 1
