"""A trained byte-level BPE is RoBERTa's or ModernBERT's kind, and always the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from bert.errors import ConfigError
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import ODD_TEXTS
from training.corpus import vocabulary
from training.corpus.settings import VocabularyFamily
from training.corpus.vocabulary import train_bpe_vocabulary

ROOT = Path(__file__).parents[3]
TEXTS = [
    "The café's lower prices were lowered.",
    "Lowest of the lowlands, the lowering sky.",
    "the the the 今天天气很好",
]
CODE = f"""
from training.corpus.vocabulary import train_bpe_vocabulary
print(train_bpe_vocabulary(lambda: {TEXTS!r}, 320, "roberta").to_json())
"""


@pytest.mark.parametrize(
    ("family", "ids", "between"),
    [("roberta", (0, 1, 2, 3, 299), 2), ("modernbert", (296, 298, 297, 295, 299), 1)],
)
def test_special_pieces_are_where_the_family_has_them(
    tmp_path: Path, family: VocabularyFamily, ids: tuple[int, ...], between: int
) -> None:
    train_bpe_vocabulary(lambda: TEXTS, 300, family).save(tmp_path, segments=False)
    read = Tokenizer.load(tmp_path)
    assert (read.cls_id, read.pad_id, read.sep_id, read.unk_id, read.mask_id) == ids
    assert read.form.between == (read.sep_id,) * between
    assert (read.vocab_size, read.mask_takes_blanks) == (300, True)


@pytest.mark.parametrize(
    ("family", "name"), [("roberta", "RobertaTokenizer"), ("modernbert", "TokenizersBackend")]
)
def test_transformers_loads_it_as_its_class(tmp_path: Path, family: VocabularyFamily, name: str) -> None:
    ours = train_bpe_vocabulary(lambda: TEXTS, 320, family)
    ours.save(tmp_path, segments=False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == name
    for text in ODD_TEXTS:
        first, second = ours.pieces([text, "the sky"])
        pair = ours.pair(first, second)
        assert theirs(text, "the sky")["input_ids"] == pair.ids.tolist()
    assert theirs.decode(ours.ids(["the CAFÉ's 😀"])[0]) == "the CAFÉ's 😀"
    masked = theirs("the <mask> sky".replace("<mask>", theirs.mask_token))["input_ids"]
    parts = ours.ids(["the", " sky"])
    assert masked == [ours.cls_id, *parts[0], ours.mask_id, *parts[1], ours.sep_id]
    theirs.save_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).ids(list(ODD_TEXTS)) == ours.ids(list(ODD_TEXTS))


def test_another_process_trains_the_same() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == train_bpe_vocabulary(lambda: TEXTS, 320, "roberta").to_json()
    assert "Ġlow" in run.stdout


def test_scripts_without_spaces_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MAX_UNSPACED", 500)
    texts = [f"word{number} 今天天气" for number in range(1000)]
    counted = list(vocabulary._spaced_texts(lambda: texts))
    assert 80 < len(counted) < 170
    assert counted == list(vocabulary._spaced_texts(lambda: texts))
    assert len(list(vocabulary._spaced_texts(lambda: ["only words"] * 1000))) == 1000


def test_long_words_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = vocabulary._spaced_texts(lambda: ["a\n b  " + "x" * 250])
    assert text == f"a b {'x' * 100}\n{'x' * 100}\n{'x' * 50}"


def test_no_room_and_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size \(260\) must be at least 261"):
        train_bpe_vocabulary(lambda: TEXTS, 260, "roberta")
    with pytest.raises(ConfigError, match="the texts are empty"):
        train_bpe_vocabulary(lambda: ["", " "], 300, "roberta")
