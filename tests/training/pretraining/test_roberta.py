"""RoBERTa from raw text: its own vocabulary, and a checkpoint that transformers takes for RoBERTa's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

from bert.checkpoint.weights import read_weights
from bert.config import BertConfig
from bert.nn.checkpoint import load_into
from bert.tokenizer import Tokenizer
from tests.support.bert_reference import fill
from tests.support.pretraining_runs import SMALL, TINY
from tests.support.tokenizers import TRAINING_TEXTS
from training.corpus.prepare import prepare
from training.corpus.settings import PrepareSettings
from training.corpus.shards import Corpus
from training.engine.records import read_lines
from training.pretrain import pretrain
from training.pretraining.data import held_out_examples, masking
from training.pretraining.examples.base import MaskedExample, SpecialIds
from training.pretraining.fill_mask import fill as fill_gaps
from training.pretraining.fill_mask import gaps
from training.pretraining.objectives.language_models import MaskedLanguageModel
from training.pretraining.pretrain_batch import collate
from training.pretraining.settings import PretrainSettings


def write_texts(file: Path, documents: int = 60) -> Path:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(TRAINING_TEXTS, 6)) for _ in range(documents)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=["roberta", "modernbert"])
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    source = write_texts(folder / "a.jsonl")
    prepare(
        PrepareSettings(
            sources=[str(source)],
            output_dir=folder / request.param,
            model_type=request.param,
            vocab_size=400,
            held_out=0.2,
            processes=1,
        )
    )
    return folder / str(request.param)


def run_settings(corpus: Path, out: Path, **changes: Any) -> PretrainSettings:
    model = {**TINY, "model_type": corpus.name, "intermediate_size": 24}
    values = {**SMALL, "corpus": corpus, "output_dir": out, "recipe": "roberta", "model": model, **changes}
    for name in {"objective", *(["model"] if "base" in changes else [])} - changes.keys():
        del values[name]
    return PretrainSettings(**values)


def read_model(folder: Path) -> MaskedLanguageModel:
    objective = MaskedLanguageModel(BertConfig.read(folder))
    load_into(objective.model, folder)
    return objective


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_lines(out / "log.jsonl") if "loss" in line]


@pytest.fixture(scope="module")
def model(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pretrain(run_settings(corpus, tmp_path_factory.mktemp("run"), max_steps=4))
    assert folder is not None
    return folder


def test_transformers_has_its_class_and_its_loss(corpus: Path, model: Path, tmp_path: Path) -> None:
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(model, output_loading_info=True)
    names = {"roberta": "RobertaForMaskedLM", "modernbert": "ModernBertForMaskedLM"}
    assert type(theirs).__name__ == names[corpus.name]
    assert not any(report.values()), report
    fill(theirs.eval(), 0)
    theirs.save_pretrained(tmp_path)
    settings, opened, special = run_settings(corpus, tmp_path), Corpus.open(corpus), SpecialIds.load(corpus)
    examples = held_out_examples(settings, opened, masking(settings, opened, special))
    batch = collate(examples, special.pad, 48, packed=False)
    labels = torch.full(batch.real.shape, -100)
    labels.view(-1)[batch.masked] = batch.labels
    with torch.no_grad():
        found = read_model(tmp_path).eval().logits(batch)[0]
        expected = theirs(batch.input_ids, attention_mask=batch.real.long(), labels=labels)
    assert found is not None
    torch.testing.assert_close(found, expected.logits.flatten(0, 1)[batch.masked], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(F.cross_entropy(found, batch.labels), expected.loss, atol=1e-4, rtol=1e-4)


def test_texts_have_the_ids_and_the_loss_of_transformers_tokenizer(corpus: Path, model: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    ours = Tokenizer.load(model)
    text = "Ada met Charles, naïve café 😀 京."
    assert theirs(text)["input_ids"] == ours.single(ours.pieces([text])[0]).ids.tolist()
    assert "token_type_ids" not in theirs(text)
    if corpus.name == "roberta":
        assert type(theirs).__name__ == "RobertaTokenizer"
        assert (theirs.pad_token_id, theirs.mask_token_id) == (1, len(theirs) - 1)
        config = json.loads((model / "config.json").read_text())
        assert (config["pad_token_id"], config["max_position_embeddings"]) == (1, 66)


def test_files_name_the_pieces_around_a_text_and_its_longest(corpus: Path, tmp_path: Path) -> None:
    changes = {"objective": "replaced_token", "replaced_token": {"generator_width": 1}, "max_steps": 1}
    saved = pretrain(run_settings(corpus, tmp_path, **changes))
    assert saved is not None
    special = SpecialIds.load(corpus)
    expected = {"bos_token_id": special.cls, "eos_token_id": special.sep}
    if corpus.name == "modernbert":
        expected |= {"cls_token_id": special.cls, "sep_token_id": special.sep}
    text = " ".join(TRAINING_TEXTS * 100)
    for folder in (saved, saved / "generator"):
        cut = transformers.AutoTokenizer.from_pretrained(folder)(text, truncation=True)["input_ids"]
        assert len(cut) == BertConfig.read(saved).max_position_embeddings
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert {name: config[name] for name in expected} == expected
        theirs = transformers.AutoConfig.from_pretrained(folder)
        assert {name: getattr(theirs, name) for name in expected} == expected


def test_examples_are_full_sentences_between_its_own_special_pieces(corpus: Path, model: Path) -> None:
    special, tokenizer = SpecialIds.load(corpus), Tokenizer.load(corpus)
    settings = run_settings(corpus, model.parent)
    opened = Corpus.open(corpus)
    examples: list[MaskedExample] = held_out_examples(settings, opened, masking(settings, opened, special))
    for example in examples:
        assert (example.original[0], example.original[-1]) == (special.cls, special.sep)
        assert not np.isin(example.original[~example.special], list(tokenizer.special_ids())).any()
        assert not example.segment_ids.any()
    changed = np.concatenate([example.ids[example.positions] for example in examples])
    assert (changed == special.mask).mean() > 0.6


def test_the_report_shows_words_and_not_pieces(corpus: Path, model: Path) -> None:
    report = (model.parent / "report/report.md").read_text(encoding="utf-8")
    assert "Ġ" not in report and "Fill-mask" in report
    tokenizer, objective = Tokenizer.load(corpus), read_model(model)
    found = gaps(Corpus.open(corpus), tokenizer, 5)
    for gap, filled in zip(found, fill_gaps(objective, tokenizer, found), strict=True):
        assert filled.text.replace("[MASK]", filled.truth) == tokenizer.decode(gap.ids.tolist()).strip()
        assert filled.truth.isalpha() and " [MASK]" in f" {filled.text}"


def test_pairs_have_the_form_of_the_tokenizer(corpus: Path, model: Path) -> None:
    settings = run_settings(corpus, model.parent, examples="pairs")
    opened, special = Corpus.open(corpus), SpecialIds.load(corpus)
    tokenizer = Tokenizer.load(corpus)
    texts = [
        [part.tolist() for part in np.split(example.original[~example.special], [at])]
        for example in held_out_examples(settings, opened, masking(settings, opened, special))
        for at in [int(np.flatnonzero(example.special)[1]) - 1]
    ]
    examples = held_out_examples(settings, opened, masking(settings, opened, special))
    form = tokenizer.form
    for example, (first, second) in zip(examples, texts, strict=True):
        between = list(form.between)
        assert example.original.tolist() == [form.cls_id, *first, *between, *second, form.sep_id]
        assert len(example.original) <= settings.max_tokens
        assert example.segment_ids[-1] == form.second_segment


def test_a_stopped_run_goes_on_bit_for_bit(corpus: Path, tmp_path: Path) -> None:
    def run(folder: str, steps: int) -> bytes:
        found = pretrain(
            run_settings(
                corpus,
                tmp_path / folder,
                max_steps=steps,
                masking={"kind": "whole_words"},
                schedule="constant",
                warmup_ratio=0.0,
            )
        )
        assert found is not None
        return (found / "model.safetensors").read_bytes()

    assert run("parts", 2) != run("parts", 4) == run("whole", 4)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_a_run_goes_on_from_its_checkpoint_with_its_family(corpus: Path, model: Path, tmp_path: Path) -> None:
    found = pretrain(run_settings(corpus, tmp_path / "on", base=str(model), max_steps=1))
    assert found is not None
    assert json.loads((found / "config.json").read_text())["model_type"] == corpus.name
    assert set(read_weights(found)) == set(read_weights(model))
