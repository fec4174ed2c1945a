"""Folders of models with a vector for each token: exported with parity to plain numpy, or refused with what to do.

Vectors and scores are compared with those of sentence-transformers 6.2.0 and PyLate 1.6.0 where
BERT_SENTENCE_TRANSFORMERS_PYTHON and BERT_PYLATE_PYTHON are the Pythons of environments that have them.
"""

import json
import os
import string
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert.bundle import read_bundle
from bert.checkpoint.description import Stated
from bert.checkpoint.hub import wanted_files
from bert.checkpoint.weights import read_checkpoint
from bert.errors import BertError, ExportError, ParityError, TextTooLongError
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec, TokenVectors
from bert.tasks.vectors.token_vectors import DOCUMENT, QUERY, encode, maxsim
from model_export.cli import main
from model_export.verify.agreement import check_agreement
from model_export.verify.precision import EXPORTERS, Fp32
from model_export.verify.texts import make_text, texts_file
from model_export.verify.verified_graph import ExportContext
from tests.support.tiny import vocabulary
from tests.support.token_vectors import MASK, WIDTH, write_stanford

PYTHONS = {
    "own": os.environ.get("BERT_SENTENCE_TRANSFORMERS_PYTHON", ""),
    "pylate": os.environ.get("BERT_PYLATE_PYTHON", ""),
}
MARKED = {"query_token_id": "a", "doc_token_id": "the"}
OWN = {"model_type": "MultiVectorEncoder"}
PROMPTS = {"query": "[Q] ", "document": "[D] "}
MARKERS = list(PROMPTS.values())


def _expansion(strategy: str, *, attend: bool, length: int = 32) -> dict[str, Any]:
    return {"query_expansion": {"strategy": strategy, "attend": attend, "length": length}}


KINDS: dict[str, dict[str, Any]] = {
    "classic": {
        "body": "bert",
        "format": "own",
        "markers": MARKERS,
        "prompts": PROMPTS,
        "skiplist_words": list(string.punctuation),
        "transformer": {**_expansion("fixed", attend=False), "document_length": 180},
    },
    "attended": {"body": "bert", "format": "own", "transformer": _expansion("fixed", attend=True, length=48)},
    "at-least": {
        "body": "bert",
        "format": "own",
        "markers": MARKERS,
        "prompts": PROMPTS,
        "transformer": {**_expansion("min", attend=False, length=24), "query_length": 40},
        "similarity_fn_name": "meanmaxsim",
    },
    "plain": {
        "body": "bert",
        "format": "own",
        "prompts": {"query": "query: ", "document": "a document: "},
        "transformer": {"query_length": 20, "document_length": 60},
        "widths": [24, 8],
        "normalize": False,
    },
    "windows": {
        "body": "modernbert",
        "format": "own",
        "markers": MARKERS,
        "prompts": PROMPTS,
        "skiplist_words": [",", "."],
        "transformer": {
            **_expansion("min", attend=False, length=10),
            "query_length": 300,
            "document_length": 300,
        },
    },
    "short-windows": {
        "body": "modernbert",
        "format": "own",
        "transformer": _expansion("fixed", attend=False, length=10),
    },
    "stanford": {
        "body": "bert",
        "format": "stanford",
        "metadata": {
            "query_maxlen": 40,
            "doc_maxlen": 120,
            "attend_to_mask_tokens": True,
            "mask_punctuation": False,
        },
    },
    "stanford-bare": {"body": "bert", "format": "stanford"},
}
PYLATE: dict[str, dict[str, Any]] = {
    "usual": {"body": "bert", "format": "pylate"},
    "modern": {
        "body": "modernbert",
        "format": "pylate",
        "pylate": {"query_length": 10, "document_length": 300, "skiplist_words": [","]},
    },
    "unfilled": {
        "body": "bert",
        "format": "pylate",
        "pylate": {"do_query_expansion": False, "query_length": 40},
    },
    "attended": {"body": "bert", "format": "pylate", "pylate": {"attend_to_expansion_tokens": True}},
    "stanford": {"body": "bert", "format": "stanford", "metadata": {"query_maxlen": 24, "doc_maxlen": 90}},
}


@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "int8", "fp16"])
def test_an_export_is_the_checkpoint_in_plain_numpy(precision: str, attend: bool, tmp_path: Path) -> None:
    """In 8 bits no text's vectors depend on its neighbours, in the last bit."""
    metadata = {**MARKED, "query_maxlen": 16, "attend_to_mask_tokens": attend}
    write_stanford(tmp_path / "m", metadata)
    command = ["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b"), "--precision", precision]
    if precision == "fp16" and not attend:
        checkpoint = read_checkpoint(tmp_path / "m")
        with pytest.raises(
            ExportError, match=r"fp16 is not built .*attend is false.*: export with --precision int8"
        ):
            EXPORTERS["fp16"](checkpoint, ())
        return
    assert main(command) == 0
    parity = read_bundle(tmp_path / "b").manifest.parity
    assert parity["neighbours_difference"] <= {"int8": 0.0, "fp32": 1e-5, "fp16": 1e-5}[precision]
    assert parity["largest_difference"] < {"int8": 0.05, "fp32": 1e-4, "fp16": 1e-2}[precision]


def test_8_bits_are_judged_by_the_order_of_documents(tmp_path: Path) -> None:
    write_stanford(tmp_path)
    context = ExportContext(read_checkpoint(tmp_path))
    spec, texts = context.checkpoint.spec, context.judged_texts[0]
    before = context.float32_on_judged(0)
    found = check_agreement(spec, texts, before, [rows + np.float32(1e-4) for rows in before], 0.02)
    assert 0.999 < found["rank_correlation"] <= 1
    reversed_vectors = [
        -rows if text.encoding.sequence_ids[0] else rows for text, rows in zip(texts, before, strict=True)
    ]
    with pytest.raises(ParityError, match=r"rank correlation with the checkpoint.s scores is -?0"):
        check_agreement(spec, texts, before, reversed_vectors, 0.02)


def test_a_folder_says_what_stands_around_a_text(tmp_path: Path) -> None:
    write_stanford(tmp_path, {**MARKED, "query_maxlen": 9, "doc_maxlen": 20})
    checkpoint = read_checkpoint(tmp_path)
    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    (text,) = tokenizer.pieces(["the film, warm!"])
    query, document = (encode(text, side, tokenizer, spec) for side in (QUERY, DOCUMENT))
    named = [tokenizer.id_to_token(number) for number in query.ids.tolist()]
    assert named == ["[CLS]", "a", "the", "film", ",", "warm", "!", "[SEP]", "[MASK]"]
    named = [tokenizer.id_to_token(number) for number in document.ids.tolist()]
    assert named == ["[CLS]", "the", "the", "film", ",", "warm", "!", "[SEP]"]
    task = TASKS["token_vectors"]
    assert task.head_positions(query).tolist() == list(range(9))
    assert task.head_positions(document).tolist() == [0, 1, 2, 3, 5, 7]  # without its punctuation
    (long,) = tokenizer.pieces(["warm " * 30])
    with pytest.raises(TextTooLongError, match=r"33 tokens .* at most 20"):
        encode(long, DOCUMENT, tokenizer, spec)
    cut = encode(long, DOCUMENT, tokenizer, spec, truncate=True)
    assert cut.truncated and len(cut) == 20 and cut.ids[-1] == tokenizer.sep_id
    assert TaskSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def _write_modules(folder: Path, **changed: Any) -> None:
    """Write what PyLate adds to a body's folder; `changed` are other settings, or files by their names."""
    write_stanford(folder, {}, architectures=["BertModel"])
    weights = load_file(folder / "model.safetensors")
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": weights.pop("linear.weight")}, folder / "1_Dense" / "model.safetensors")
    save_file(weights, folder / "model.safetensors")
    kinds = changed.pop("modules", ["Transformer", "Dense"])
    paths = ["" if kind == "Transformer" else f"{n}_{kind}" for n, kind in enumerate(kinds)]
    modules = [{"path": path, "type": f"a.{kind}"} for kind, path in zip(kinds, paths, strict=True)]
    dense = {"activation_function": "torch.nn.Identity", "bias": False, "out_features": WIDTH}
    files = {
        "modules.json": modules,
        "1_Dense/config.json": {**dense, **changed.pop("dense", {})},
        "sentence_bert_config.json": changed.pop("lengths", {}),
        "2_MultiVectorMask/config.json": changed.pop("mask", {}),
        "config_sentence_transformers.json": {"query_prefix": "a", "document_prefix": "the", **changed},
    }
    (folder / "2_MultiVectorMask").mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), "utf-8")


def test_pylate_and_sentence_transformers_say_it_in_their_own_files(tmp_path: Path) -> None:
    _write_modules(tmp_path / "p", query_length=10, skiplist_words=[".", "unknown word"])
    how = read_checkpoint(tmp_path / "p").spec.token_vectors
    assert how is not None and (how.query_length, how.document_length, how.expansion_length) == (10, 64, 10)
    assert how.skipped_ids == (vocabulary().index("."),) and not how.attends and how.expansion_id == MASK
    own = {
        **OWN, "similarity_fn_name": "meanmaxsim",
        "prompts": {"query": "a long query: ", "document": None},
    }  # fmt: skip
    _write_modules(tmp_path / "o", **own)
    settings = tmp_path / "o" / "config_sentence_transformers.json"
    content = {key: value for key, value in json.loads(settings.read_text()).items() if "prefix" not in key}
    settings.write_text(json.dumps(content))
    spec = read_checkpoint(tmp_path / "o").spec
    assert spec.token_vectors == TokenVectors(64, 64, mean=True) and not spec.normalize
    assert spec.prompts == {"query": "a long query: "}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"modules": ["Transformer", "Dense", "HierarchicalTokenPooling"]},
            "a module 'HierarchicalTokenPooling'",
        ),
        ({"modules": ["Transformer", "Dense", "Pooling"]}, "a module 'Pooling'"),
        ({"dense": {"use_residual": True}}, "use_residual is True"),
        ({"skiplist_words": [5]}, r"skiplist_words .* must be a list of texts"),
        ({"skiplist_words": {"a": 1}}, "must be a list of texts"),
        (
            {"skiplist_words": [".", "[CLS]"]},
            r"skiplist_words has '\[CLS\]', and a document of other skipped",
        ),
        ({"query_prefix": ["a"]}, "no piece \"\\['a'\\]\", which stands before each query"),
        ({"prompts": {"query": 5}}, "prompts are .*no texts by name"),
        ({"query_length": 2}, "a length is 2, .* at least 4"),
        ({"query_length": 100}, "filled up to 100 tokens, and the model reads at most 64"),
        ({"query_prefix": "[Q] "}, r"no piece '\[Q\] ', which stands before each query"),
        ({"similarity_fn_name": "cosine"}, "similarity_fn_name is 'cosine'; known are maxsim, meanmaxsim"),
        ({"attend_to_expansion_tokens": "yes"}, "attend true or false"),
        (
            {"modules": ["Transformer", "Dense", "MultiVectorMask"], "mask": {"keep_only_token_ids": [1]}},
            "keep_only_token_ids is",
        ),
        (
            {
                "modules": ["Transformer", "Dense", "MultiVectorMask"],
                "mask": {"skiplist_tasks": ["query", "document"]},
            },
            "skiplist_tasks is",
        ),
        (
            {"lengths": {"modality_config": {"text": {"method": "get_text_features"}}}},
            "exported is 'last_hidden_state'",
        ),
        ({"lengths": {"query_expansion": {"strategy": "max"}}, **OWN}, "the strategy fixed or min"),
        ({"lengths": {"query_expansion": {"strategy": "min"}}, **OWN}, "must have a length, a token"),
        (
            {"lengths": {"query_expansion": {"strategy": "min", "length": 8, "token": "a"}}, **OWN},
            "fills queries with 'a', to which no token attends",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    _write_modules(tmp_path, **changed)
    if changed.get("model_type"):
        file = tmp_path / "config_sentence_transformers.json"
        file.write_text(json.dumps(OWN))
    with pytest.raises(BertError, match=f"(?s){message}"):
        read_checkpoint(tmp_path)


def test_a_length_for_all_texts_is_refused(tmp_path: Path) -> None:
    write_stanford(tmp_path)
    with pytest.raises(
        BertError, match="max_tokens is said of tasks with one length, and the task is token_vectors"
    ):
        read_checkpoint(tmp_path, stated=Stated(max_tokens=20))


def test_stanfords_settings_are_downloaded() -> None:
    listed = ["config.json", "model.safetensors", "tokenizer.json", "artifact.metadata", "code.py"]
    assert wanted_files(listed) == sorted(listed[:4])


def test_a_stanford_folder_without_its_layer_is_refused(tmp_path: Path) -> None:
    write_stanford(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["linear.weight"] = np.array(1, np.float32)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(BertError, match=r"no tensor 'linear.weight'"):
        read_checkpoint(tmp_path)
    del weights["linear.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(BertError, match=r"no tensor .linear.weight., which an HF_ColBERT needs"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(("by", "kinds"), [("own", KINDS), ("pylate", PYLATE)])
def test_vectors_and_scores_are_the_references(by: str, kinds: dict[str, Any], tmp_path: Path) -> None:
    """Markers, lengths, tokens that fill queries in three ways, pieces without a vector; two bodies, long and short rows."""
    if not PYTHONS[by]:
        needed = (
            "sentence-transformers 6.2.0: `make clients`"
            if by == "own"
            else "pylate 1.6.0, which takes another torch"
        )
        pytest.skip(f"no variable names a Python that has {needed}")
    odd = ["", " \n ", "人 与 机 e-mail_x 東京", "Co-op_x!! 🙂 ok", "x", "...", "Die Straße, l'été, naïve"]
    shipped = texts_file()
    texts = [*shipped["texts"][:38], *(row["context"] for row in shipped["questions"][:5]), *odd]
    if by == "pylate":  # its sentence-transformers 5.3 takes the blanks around a text away
        texts = [text.strip() for text in texts]
    asked = {"texts": texts, "kinds": kinds, "by": by}
    script = Path(__file__).parents[2] / "support" / "token_vector_models.py"
    command = [PYTHONS[by], "-P", str(script), str(tmp_path)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, input=json.dumps(asked), text=True, capture_output=True, timeout=580, env=environment
    )
    assert done.returncode == 0, done.stderr
    for name in kinds:
        checkpoint = read_checkpoint(tmp_path / name)
        spec, tokenizer, graph = checkpoint.spec, checkpoint.tokenizer, Fp32(checkpoint, ())
        expected = json.loads((tmp_path / name / "expected.json").read_text("utf-8"))
        found = {}
        for key, side in (("query", QUERY), ("document", DOCUMENT)):
            pieces = tokenizer.pieces([spec.prompts.get(key, "") + text for text in texts])
            encoded = [encode(each, side, tokenizer, spec, truncate=True) for each in pieces]
            found[key] = graph.packed([make_text(each, spec.task) for each in encoded])
            for text, mine, theirs in zip(texts, found[key], expected[key], strict=True):
                assert mine == pytest.approx(np.array(theirs), abs=1e-5), (name, key, text)
        assert spec.token_vectors is not None
        for query, theirs in zip(found["query"], expected["scores"], strict=True):
            mine = maxsim(query, found["document"], mean=spec.token_vectors.mean)
            assert mine == pytest.approx(np.array(theirs), rel=1e-4, abs=1e-4), name
