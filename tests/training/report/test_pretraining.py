import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bert.config import BertConfig
from bert.text.wordpiece import from_vocabulary
from bert.tokenizer import Tokenizer
from tests.support.tokenizers import KINDS, backend_of
from training.corpus.shards import Corpus, Document, write_index, write_shard
from training.pretraining.fill_mask import Filled, Gap, _shown, _text, fill, gaps, readable
from training.pretraining.objectives.language_models import (
    LeftToRight,
    MaskedLanguageModel,
    MaskedLanguageModelWithPairs,
)
from training.pretraining.pretrain_batch import PretrainBatch
from training.report.pretraining import (
    PretrainReport,
    as_json,
    as_markdown,
    curve_panels,
    run_report,
    split_log,
    write_report,
)

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "mat", "old", "man", "saw", "river", "tree", "and", "stone"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##ing", ",", ".", "7"]
SPECIAL = 5
FILLED = [
    Filled("The cat sat on the [MASK].", "mat", 0.2, 2, (("floor", 0.5), ("mat", 0.2))),
    Filled("A *star* | <b> [MASK].", "river", 0.001, 1234, (("tree", 0.4), ("stone", 0.1))),
]


def history(steps: int = 300, **more: float) -> list[dict[str, float]]:
    return [
        {
            "step": n, "tokens": n * 1000.0, "loss": 2 + 8 / n, "loss_mlm": 1.5 + 8 / n, "loss_nsp": 0.5,
            "lr": 1e-4, "grad_norm": 1 + 5 / n, "tokens_per_second": 500.0, "mfu": 0.4, **more,
        }
        for n in range(1, steps + 1)
    ]  # fmt: skip


EVALUATIONS = [
    {
        "step": n,
        "mlm_loss": 600 / n,
        "mlm_accuracy": n / 600,
        "perplexity": math.exp(600 / n),
        "pair_accuracy": 0.75,
    }
    for n in (100, 200, 300)
]


def report(**changes: Any) -> PretrainReport:
    values: dict[str, Any] = {
        "title": "mlm+nsp", "history": history(), "evaluations": EVALUATIONS, "filled": FILLED, "log_vocab": 10.3,
        "unigram_entropy": 7.0, "command": "bert-pretrain --config x.yaml", "settings": {"batch_size": 32},
    }  # fmt: skip
    return PretrainReport(**{**values, **changes})


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Ten documents of twenty sentences of eleven pieces: nine words, a "##s", a full stop."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    tokenizer = Tokenizer(from_vocabulary(folder / "vocab.txt", lowercase=True))
    tokenizer.save(folder)
    (folder / "vocab.txt").unlink()
    entries = [write_shard(folder, "held_out-00000", documents(), 2)]
    tokens = {"sha256": "", "vocab_size": tokenizer.vocab_size, "uncased": True}
    write_index(folder, {"tokenizer": tokens, "token_bytes": 2, "splits": {"train": [], "held_out": entries}})
    return Corpus.open(folder)


def documents() -> list[Document]:
    rng, made = np.random.default_rng(0), []
    for _ in range(10):
        sentences = [sentence(rng) for _ in range(20)]
        tokens = np.concatenate(sentences)
        made.append(
            Document(tokens, tokens == id_of("##s"), np.arange(0, len(tokens) + 1, 11, dtype=np.int32))
        )
    return made


def sentence(rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int32]]:
    words = rng.integers(SPECIAL, SPECIAL + len(WORDS), 8)
    return np.array([*words[:4], id_of("7"), *words[4:], id_of("##s"), id_of(".")], np.int32)


def id_of(piece: str) -> int:
    return VOCABULARY.index(piece)


class Oracle(MaskedLanguageModel):
    """Knows every word, but is a little unsure."""

    def logits(self, batch: PretrainBatch) -> tuple[Tensor, None]:
        return 5.0 * torch.nn.functional.one_hot(batch.labels, len(VOCABULARY) + 3).float(), None


def config(**changes: Any) -> BertConfig:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertConfig(
        **{"vocab_size": len(VOCABULARY) + 3, "max_position_embeddings": 32, **shape, **changes}
    )


@pytest.mark.usefixtures("pictures")
def test_a_report_is_a_page_numbers_and_curves(tmp_path: Path) -> None:
    page = write_report(tmp_path / "report", report())
    assert {file.name for file in page.parent.iterdir()} == {"report.md", "report.json", "curves.png"}
    text = page.read_text(encoding="utf-8")
    assert "](curves.png)" in text
    with Image.open(page.parent / "curves.png") as picture:
        assert picture.size[0] == 960
    found = json.loads((page.parent / "report.json").read_text(encoding="utf-8"))
    assert found["held_out"] == EVALUATIONS[-1]
    assert found["training"]["steps"] == 300
    assert found["training"]["mfu"] == 0.4
    assert found["fill_mask"][0]["truth"] == "mat"
    assert found["settings"] == {"batch_size": 32}


def test_the_page_says_how_well_words_and_pairs_are_told() -> None:
    text = as_markdown(report())
    assert "| plain masking of 15% of the tokens | step 100 | step 300 |" in text
    assert "| loss of masked words, nats | 6.000 | 2.000 |" in text
    assert "| perplexity | 403.4 | 7.4 |" in text
    assert "| masked words right | 16.7% | 50.0% |" in text
    assert "| pairs right (chance 50%) | 75.0% | 75.0% |" in text
    assert "a blind guess gives 10.30, knowing word frequencies alone gives 7.00" in text
    assert "| share of the machine's matmul peak (MFU) | 40.0% |" in text


def test_fill_mask_examples_show_truth_and_guesses_and_nothing_is_taken_for_markup() -> None:
    text = as_markdown(report())
    assert (
        "A word of each of 2 held-out sentences, chosen at random: 0 right at the first guess, 1 among"
        in text
    )
    assert "1. The cat sat on the **\\_\\_\\_\\_**.  \n   floor 50% · **mat** 20%\n" in text
    assert "tree 40% · stone 10% · … · **river** at place 1,234" in text
    assert "A \\*star\\* \\| \\<b\\>" in text


def test_warnings_come_before_the_scores() -> None:
    text = as_markdown(report(warnings=["step 3: the loss diverges"]))
    assert text.index("- step 3: the loss diverges") < text.index("## Held-out text")
    assert "## Warnings" not in as_markdown(report())


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluations": (), "filled": (), "settings": {}, "log_vocab": None, "unigram_entropy": None},
        {"evaluations": [{"step": 300}]},  # the left-to-right ablation: no masked words
        {"history": history(1), "evaluations": EVALUATIONS[:1]},
        {"history": ()},
        {"history": [{k: v for k, v in h.items() if k not in ("mfu", "loss_mlm", "loss_nsp")} for h in history(30)]},
        {"history": history(50, lr=0.0, grad_norm=0.0)},
    ],
)  # fmt: skip
def test_a_report_is_written_whatever_is_missing(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert write_report(tmp_path, report(**changes)).is_file()


def test_the_curves_are_those_that_the_log_has() -> None:
    labels = ["loss, nats", "right on held-out text", "learning rate", "gradient norm", "tokens a second"]
    panels = curve_panels(report())
    assert [panel.label for panel in panels] == labels
    assert [(line.label, list(line.values)[-1]) for line in panels[0].lines] == [
        ("training", pytest.approx(1.5 + 8 / 300)),
        ("held-out text", 2.0),
    ]
    assert panels[0].levels == {"blind guess": 10.3, "word frequencies": 7.0}
    assert [panel.label for panel in curve_panels(report(evaluations=[{"step": 300}]))] == [
        labels[0],
        *labels[2:],
    ]


def test_a_long_history_is_thinned_in_json() -> None:
    assert len(as_json(report(history=history(10_001)))["history"]) <= 500


def test_a_log_is_split_into_steps_evaluations_and_warnings() -> None:
    steps, evaluations, warnings = split_log(
        [{"step": 1, "loss": 2.0}, {"step": 1, "held_out": {"mlm_loss": 3.0}}, {"step": 1, "warning": "a\nb"}]
    )
    assert (steps, evaluations) == ([{"step": 1, "loss": 2.0}], [{"step": 1, "mlm_loss": 3.0}])
    assert warnings == ["a", "b"]


def test_gaps_are_single_pieces_of_letters_from_different_documents(corpus: Corpus) -> None:
    tokenizer = Tokenizer.load(corpus.folder)
    found = gaps(corpus, tokenizer, 10)
    assert len(found) == 10
    words = [VOCABULARY[gap.ids[gap.position]] for gap in found]
    assert set(words) <= set(WORDS)
    # The word before "##s" is not a piece by itself, "7" and "." are no words.
    assert {gap.position for gap in found} <= {0, 1, 2, 3, 5, 6, 7}
    texts = [document.tokens.tolist() for document in documents()]
    sources = [next(i for i, text in enumerate(texts) if _holds(text, gap.ids.tolist())) for gap in found]
    assert len(set(sources)) == 10


def _holds(text: Sequence[int], part: Sequence[int]) -> bool:
    return any(text[i : i + len(part)] == part for i in range(0, len(text), len(part)))


def test_gaps_are_the_same_at_every_call_and_never_twice_the_same(corpus: Corpus) -> None:
    tokenizer = Tokenizer.load(corpus.folder)
    first, second = (gaps(corpus, tokenizer, 25) for _ in range(2))
    assert [(g.ids.tolist(), g.position) for g in first] == [(g.ids.tolist(), g.position) for g in second]
    assert len({tuple(g.ids.tolist()) for g in first}) == 25


def test_a_gap_is_filled_with_probabilities_over_the_real_pieces(corpus: Corpus) -> None:
    tokenizer = Tokenizer.load(corpus.folder)
    found = gaps(corpus, tokenizer, 4)
    objective = Oracle(config()).train()
    filled = fill(objective, tokenizer, found, top_k=3)
    assert objective.training
    sure = math.exp(5) / (
        math.exp(5) + len(VOCABULARY) - 1
    )  # the three rows that fill up the table do not count
    for gap, one in zip(found, filled, strict=True):
        assert one.truth == VOCABULARY[gap.ids[gap.position]] == one.guesses[0][0]
        assert one.truth_rank == 1
        assert one.truth_probability == pytest.approx(sure)
        assert one.text.count("[MASK]") == 1
        assert len(one.guesses) == 3


def test_what_is_shown_is_what_the_model_says_of_the_sentence_alone(corpus: Corpus) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.load(corpus.folder)
    objective = MaskedLanguageModel(config(initializer_range=0.5))
    short = Gap(np.array([6, 7, 8], np.int32), 1)
    (_, one) = fill(objective, tokenizer, [*gaps(corpus, tokenizer, 1), short])
    ids = torch.tensor([[tokenizer.cls_id, 6, tokenizer.mask_id, 8, tokenizer.sep_id]])
    with torch.no_grad():
        shares = objective.model.eval()(ids)[0, 2, : tokenizer.vocab_size].softmax(-1)
    assert one.truth_probability == pytest.approx(float(shares[7]), rel=1e-4)
    assert one.truth_rank == int((shares > shares[7]).sum()) + 1
    assert [piece for piece, _ in one.guesses] == [VOCABULARY[i] for i in shares.topk(5).indices]


def test_a_model_without_a_masked_language_head_fills_nothing(corpus: Corpus) -> None:
    tokenizer = Tokenizer.load(corpus.folder)
    assert fill(LeftToRight(config()), tokenizer, gaps(corpus, tokenizer, 2)) == []
    assert fill(Oracle(config()), tokenizer, []) == []


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["the", "cat", "##s", "sat", ",", "and", "slept", "."], "the cats sat, and slept."),
        (["don", "'", "t", "(", "ever", ")", "!"], "don't (ever)!"),
        (["我", "爱", "北", "京", "。"], "我爱北京。"),
        ([], ""),
    ],
)
def test_pieces_are_shown_as_people_write(pieces: list[str], text: str) -> None:
    assert readable(pieces) == text


def test_the_report_of_a_run_knows_its_model_corpus_and_machine(corpus: Corpus) -> None:
    objective = MaskedLanguageModelWithPairs(config())
    log: list[dict[str, Any]] = [
        *history(5),
        {"step": 5, "held_out": {"mlm_loss": 2.0, "mlm_accuracy": 0.5, "perplexity": 7.4}},
    ]
    made = run_report("tiny", log, objective, corpus, command="bert-pretrain")
    assert len(made.filled) == 20
    assert made.evaluations == [{"step": 5, "mlm_loss": 2.0, "mlm_accuracy": 0.5, "perplexity": 7.4}]
    assert made.log_vocab == pytest.approx(math.log(len(VOCABULARY)))
    text = as_markdown(made)
    assert "| layers | 1, 16 wide |" in text
    assert "held_out: 2,200 tokens in 10 documents |" in text
    assert text.index("| layers |") < text.index("| steps |")
    assert f"torch {torch.__version__}" in text


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_are_shown_as_text_whatever_the_tokenizer(kind: str) -> None:
    tokenizer = Tokenizer(backend_of(kind))
    sentence = "the film was warm and funny, not dull at all."
    ids = np.array(tokenizer.ids([f" {sentence}"])[0], np.int32)
    words = {i: _shown(tokenizer, int(piece)) for i, piece in enumerate(ids)}
    chosen = {i: word for i, word in words.items() if word in ("the", "and", "dull")}
    assert "the" in chosen.values()
    for position, word in chosen.items():
        assert _text(Gap(ids, position), tokenizer) == sentence.replace(word, "[MASK]")
