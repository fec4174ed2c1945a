"""A trained vocabulary is BERT's kind, and always the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert.errors import ConfigError
from bert.tokenizer import Tokenizer
from training.corpus.vocabulary import FIRST_PIECES, train_vocabulary

ROOT = Path(__file__).parents[3]
ENGLISH = [
    "The café's lower prices were lowered.",
    "Lowest of the lowlands, the lowering sky.",
    "the the the",
]
CHINESE = ["今天天气很好，我们去公园。", "BERT 很好。"]
CODE = f"""
from training.corpus.vocabulary import train_vocabulary
made = train_vocabulary(lambda: {ENGLISH!r}, 200, uncased=True, chinese=False)
print([made.id_to_token(index) for index in range(made.vocab_size)])
"""


def test_special_pieces_have_berts_ids_and_it_survives_saving(tmp_path: Path) -> None:
    made = train_vocabulary(lambda: ENGLISH, 160, uncased=True, chinese=False)
    made.save(tmp_path)
    read = Tokenizer.load(tmp_path)
    assert (read.pad_id, read.unk_id, read.cls_id, read.sep_id, read.mask_id) == (0, 100, 101, 102, 103)
    assert read.vocab_size == 160
    assert read.id_to_token(1) == "[unused0]"
    ids = read.pieces(["the CAFÉ"])[0].ids.tolist()
    assert ids == read.pieces(["the cafe"])[0].ids.tolist()
    assert read.unk_id not in ids


def test_a_cased_one_keeps_capitals_and_accents() -> None:
    made = train_vocabulary(lambda: ENGLISH, 200, uncased=False, chinese=False)
    assert made.token_to_id("T") and made.token_to_id("##é")
    assert made.ids(["The"]) != made.ids(["the"])


def test_chinese_characters_are_pieces_and_never_go_on_a_word() -> None:
    made = train_vocabulary(lambda: CHINESE, 256, uncased=True, chinese=True)
    pieces = [made.id_to_token(index) for index in range(len(FIRST_PIECES), made.vocab_size)]
    assert {"今", "天", "公", "园", "，", "##e"} <= set(pieces)
    assert not {"##今", "##，"} & set(pieces)
    assert made.unk_id not in made.ids(["今天去公园"])[0]


def test_rare_characters_give_way_first() -> None:
    texts = ["abc" * 10, "ab" * 10, "z"]
    made = train_vocabulary(lambda: texts, len(FIRST_PIECES) + 6, uncased=True, chinese=False)
    assert made.token_to_id("a") and made.token_to_id("c")
    assert made.token_to_id("z") is None


def test_another_process_trains_the_same() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    made = train_vocabulary(lambda: ENGLISH, 200, uncased=True, chinese=False)
    assert run.stdout.strip() == str([made.id_to_token(index) for index in range(made.vocab_size)])
    assert "##ing" in run.stdout or "lower" in run.stdout


def test_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="the texts are empty"):
        train_vocabulary(lambda: ["", " "], 200, uncased=True, chinese=False)
