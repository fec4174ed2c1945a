"""A trained Unigram tokenizer is ALBERT's or DeBERTa-v3's kind, and always the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from bert.errors import ConfigError
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import ODD_TEXTS
from tests.support.tokenizers import TRAINING_TEXTS
from training.corpus import vocabulary
from training.corpus.settings import VocabularyFamily
from training.corpus.vocabulary import train_unigram_vocabulary

ROOT = Path(__file__).parents[3]
CODE = f"""
from training.corpus.vocabulary import train_unigram_vocabulary
print(train_unigram_vocabulary(lambda: {TRAINING_TEXTS!r}, 200, "albert", uncased=True).to_json())
"""


def trained(family: VocabularyFamily, uncased: bool = True, size: int = 150) -> Tokenizer:
    return train_unigram_vocabulary(lambda: TRAINING_TEXTS, size, family, uncased=uncased)


@pytest.mark.parametrize(("family", "ids"), [("albert", (2, 0, 3, 1, 4)), ("deberta-v2", (1, 0, 2, 3, 109))])
def test_special_pieces_are_where_the_family_has_them(
    tmp_path: Path, family: VocabularyFamily, ids: tuple[int, ...]
) -> None:
    trained(family, size=110).save(tmp_path)
    read = Tokenizer.load(tmp_path)
    assert (read.cls_id, read.pad_id, read.sep_id, read.unk_id, read.mask_id) == ids
    assert (read.vocab_size, read.mask_takes_blanks) == (110, family == "albert")
    assert read.form.between == (read.sep_id,) and read.form.second_segment == 1


@pytest.mark.parametrize("uncased", [True, False])
@pytest.mark.parametrize(
    ("family", "own"),
    [("albert", transformers.AlbertTokenizer), ("deberta-v2", transformers.DebertaV2Tokenizer)],
)
def test_transformers_has_the_same_ids(
    tmp_path: Path, family: VocabularyFamily, own: type, uncased: bool
) -> None:
    ours = trained(family, uncased)
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    theirs = [
        transformers.AutoTokenizer.from_pretrained(tmp_path),
        own.from_pretrained(tmp_path, do_lower_case=uncased, keep_accents=not uncased),  # type: ignore[attr-defined]
    ]
    for text in (*ODD_TEXTS, *TRAINING_TEXTS):
        first, second = ours.pieces([text, "the film"])
        for each in theirs:
            assert each(text, "the film")["input_ids"] == ours.pair(first, second).ids.tolist()
    assert (ours.ids(["THE"]) == ours.ids(["the"])) is uncased


def test_another_process_trains_the_same() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (
        run.stdout.strip()
        == train_unigram_vocabulary(lambda: TRAINING_TEXTS, 200, "albert", uncased=True).to_json()
    )
    assert "▁the" in run.stdout


def test_the_rarest_characters_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "COVERAGE", 0.9)
    made = train_unigram_vocabulary(lambda: ["abcab " * 20, "z"], 30, "albert", uncased=True)
    assert made.token_to_id("z") is None
    assert made.unk_id in made.ids(["z"])[0]


def test_of_later_texts_only_known_words_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MAX_WORDS", 2)
    made = train_unigram_vocabulary(lambda: ["aa bb", "aa cc", "aa aa"], 30, "albert", uncased=True)
    assert made.token_to_id("▁aa") and made.token_to_id("c") is None


def test_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="the texts are empty"):
        train_unigram_vocabulary(lambda: ["", " "], 300, "albert", uncased=True)
