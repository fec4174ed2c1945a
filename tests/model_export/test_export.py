"""`bert-export` from the command line to the bundle, and what is left where it fails: nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bert.bundle import read_bundle
from bert.checkpoint.weights import read_checkpoint
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from model_export import demo
from model_export.cli import main
from model_export.demo import is_current
from model_export.reference import Floats
from model_export.verify import precision as precisions
from model_export.verify.embedding_ranges import SENTENCES
from model_export.verify.precision import Exporter
from model_export.verify.texts import EncodedText, sentences
from model_export.verify.verified_graph import ExportContext
from tests.support.checkpoints import SPECS, dev_file, write_checkpoint
from tests.support.process import ROOT


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_checkpoint(folder, SPECS["classification"])
    return folder


def run(checkpoint: Path, out: Path, *more: str) -> int:
    """Export in float32 unless a precision is given: `auto`, which builds two graphs, has its own tests."""
    given = [] if "--precision" in more else ["--precision", "fp32"]
    return main(["--checkpoint", str(checkpoint), "--out", str(out), *given, *more])


def test_a_bundle_of_embeddings_has_the_ranges_of_its_own_numbers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "near", SPECS["similarity"])
    assert run(tmp_path / "near", tmp_path / "b") == 0
    found = read_bundle(tmp_path / "b").manifest.embedding_ranges
    context = ExportContext(read_checkpoint(tmp_path / "near"))
    texts = [*context.texts, *sentences(context.checkpoint.tokenizer, context.checkpoint.spec)[:SENTENCES]]
    vectors = np.concatenate(context.float32.packed(texts))
    np.testing.assert_allclose(found["low"], vectors.min(axis=0), atol=1e-5)
    np.testing.assert_allclose(found["high"], vectors.max(axis=0), atol=1e-5)
    assert found["lengths"][-1] == pytest.approx(1, abs=1e-5)
    assert run(tmp_path / "near", tmp_path / "few", "--parity-texts", "few") == 0
    assert read_bundle(tmp_path / "few").manifest.embedding_ranges == {}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_bundle_holds_what_the_service_needs(precision: str, checkpoint: Path, tmp_path: Path) -> None:
    assert run(checkpoint, tmp_path / "b", "--precision", precision, "--name", "tiny", "--version", "7") == 0
    manifest = read_bundle(tmp_path / "b").manifest
    assert (manifest.name, manifest.version, manifest.precision) == ("tiny", "7", precision)
    assert manifest.task == SPECS["classification"]
    assert manifest.layout == ("flat" if precision == "fp16" else "rows")
    assert manifest.session["graph_optimization_level"] == "ORT_ENABLE_BASIC"
    assert manifest.packing["align_tokens"] == (4 if precision == "int8" else 1)
    assert manifest.parity["texts"] == 60 and manifest.embedding_ranges == {}
    if precision == "fp16":
        ran = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        said = "the written graph was run on a GPU" if ran else "not run on a GPU: "
        assert manifest.parity["check"].startswith(said)
    assert sum(n for name, n in manifest.fused_operators.items() if "Attention" in name) == 2
    assert set(manifest.source["files"]) >= {"model.safetensors", "config.json", "task.json"}
    assert Tokenizer.load(tmp_path / "b" / "tokenizer.json").pieces(["a yes"])[0].ids.tolist()


def test_a_bundle_is_not_replaced_unless_asked(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(checkpoint, tmp_path / "b") == 0
    before = (tmp_path / "b" / "bundle.json").read_bytes()
    assert run(checkpoint, tmp_path / "b", "--version", "2") == 1
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "b" / "bundle.json").read_bytes() == before
    assert run(checkpoint, tmp_path / "b", "--version", "2", "--overwrite") == 0
    manifest = read_bundle(tmp_path / "b").manifest
    assert manifest.version == "2"
    assert json.loads(before)["created"] == manifest.created > "2026"  # so it stays the default that it was


def test_a_folder_that_is_no_bundle_is_never_replaced(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(checkpoint.iterdir())
    assert run(checkpoint, checkpoint, "--overwrite") == 1
    assert "is there and is not a bundle" in capsys.readouterr().err
    assert sorted(checkpoint.iterdir()) == before


def test_a_place_that_cannot_be_written_to_is_said_before_the_work(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(checkpoint, tmp_path / "file" / "b") == 1
    error = capsys.readouterr().err
    assert "cannot be written" in error and "reading" not in error
    for place in (".", "..", "/"):  # nothing can be renamed to them
        assert run(checkpoint, Path(place), "--name", "tiny") == 1
        assert "name a folder for the bundle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--tolerance-difference", "0"], "the scores differ from the checkpoint's by"),
        (["--precision", "fp16", "--tolerance-difference", "1e-7"], "export with --precision fp32"),
    ],
)
def test_nothing_is_left_of_a_graph_that_answers_otherwise(
    arguments: list[str],
    why: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(checkpoint, tmp_path / "out" / "b", *arguments) == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("nothing_compiled")
def test_a_full_disk_is_told(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["--checkpoint", str(checkpoint), "--out", str(tmp_path / "b"), "--precision", "fp32"]
    script = (
        "import resource\n"
        "from model_export.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
        f"raise SystemExit(main({arguments!r}))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "cannot be written: File too large" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_is_overwritten_meanwhile_is_told(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    weights = place / "model.safetensors"

    def check(*_: object) -> None:
        with weights.open("r+b") as stream:  # as a training run writes its next weights
            stream.seek(-4, os.SEEK_END)
            stream.write(b"more")

    monkeypatch.setattr(precisions, "check_attention", check)
    assert run(place, tmp_path / "b", "--precision", "fp32") == 1
    assert f"{weights} was changed while it was exported; export it again" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_failed_export_leaves_the_old_bundle(checkpoint: Path, tmp_path: Path) -> None:
    assert run(checkpoint, tmp_path / "b") == 0
    assert run(checkpoint, tmp_path / "b", "--overwrite", "--tolerance-difference", "0") == 1
    assert read_bundle(tmp_path / "b").manifest.precision == "fp32"
    assert [file.name for file in tmp_path.iterdir()] == ["b"]


def test_the_score_on_labelled_data_is_in_the_manifest(checkpoint: Path, tmp_path: Path) -> None:
    dev = dev_file(tmp_path)
    arguments = ["--precision", "int8", "--dev", str(dev), "--dev-limit", "10"]
    assert run(checkpoint, tmp_path / "b", *arguments, "--tolerance-score-drop", "1") == 0
    score = read_bundle(tmp_path / "b").manifest.dev_score
    assert score["data"] == "dev.tsv" and score["metric"] == "accuracy" and score["texts"] == 10
    assert {"before", "after", "labels", "changed_labels"} <= set(score)
    assert score["before_is"] == "the checkpoint's float32 graph"


def with_dev_files(folder: Path, *files: Path) -> Path:
    spec = replace(
        SPECS["classification"],
        data={"train": [], "dev": [{"path": str(file)} for file in files]},
        command="bert-finetune --train /home/ada/customer.csv",
    )
    write_checkpoint(folder / "checkpoint", spec)
    return folder / "checkpoint"


def test_a_bundle_does_not_tell_where_its_training_data_was(tmp_path: Path) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\n" + "the soup was cold\tbad\n" * 200, encoding="utf-8")
    checkpoint = with_dev_files(tmp_path, dev)
    recorded = TaskSpec.read(checkpoint)
    run(checkpoint, tmp_path / "b", "--precision", "int8", "--tolerance-score-drop", "1")
    manifest = read_bundle(tmp_path / "b").manifest
    assert manifest.dev_score["data"] == "dev.tsv"  # read from the checkpoint's task.json
    assert manifest.task == replace(recorded, data={}, command="")
    content = (tmp_path / "b" / "bundle.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in content and "customer" not in content
    assert TaskSpec.read(checkpoint) == recorded


def test_the_first_recorded_dev_file_that_can_be_read_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, dev = tmp_path / "broken.tsv", tmp_path / "dev.tsv"
    broken.write_text("text\tlabel\nthe soup was cold\tunknown\n", encoding="utf-8")
    dev.write_text("text\tlabel\n" + "the soup was cold\tbad\n" * 200, encoding="utf-8")
    subject = ExportContext(read_checkpoint(with_dev_files(tmp_path, tmp_path / "gone.tsv", broken, dev)))
    subject.take_recorded_dev()
    assert subject.dev_file == dev and len(subject.dev.texts) == 200
    assert "not scored on the dev file of task.json" in capsys.readouterr().err


def test_recorded_dev_files_that_are_not_here_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subject = ExportContext(read_checkpoint(with_dev_files(tmp_path, Path("data/dev.tsv"))))
    subject.take_recorded_dev()
    assert subject.dev_file is None
    said = "dev file of task.json is not here: data/dev.tsv; --dev FILE scores on one"
    assert said in capsys.readouterr().err


def test_labelled_data_goes_through_the_float32_graph_once(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text("sentence\tlabel\nthe soup was cold\t1\n", encoding="utf-8")
    sizes = []
    packed = Exporter.packed

    def counted(self: Exporter, texts: Sequence[EncodedText]) -> list[Floats]:
        sizes.append(len(texts))
        return packed(self, texts)

    monkeypatch.setattr(Exporter, "packed", counted)
    assert run(checkpoint, tmp_path / "b", "--dev", str(dev), "--precision", "fp32") == 0
    assert sizes == [60, 1]
    assert read_bundle(tmp_path / "b").manifest.dev_score["before_is"] == "the same graph"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--out", "b"], "give either --checkpoint FOLDER_OR_NAME or --demo"),
        (
            ["--checkpoint", "c", "--out", "b", "--precision", "fp8"],
            "precision: input should be 'auto', 'fp32', 'fp16' or 'int8'",
        ),
        (["--checkpoint", "c"], "out: Field required"),
        (
            ["--checkpoint", "c", "--out", "b", "--tolerance-neighbours", "nan"],
            "tolerance_neighbours: input should be a finite number (given: 'nan')",
        ),
        (
            ["--checkpoint", "c", "--out", "b", "--tolerance-difference", "inf"],
            "tolerance_difference: input should be a finite number (given: 'inf')",
        ),
        (
            ["--checkpoint", "c", "--out", "b", "--parity-texts", "few"],
            "--parity-texts few is for --checkpoint with --precision fp32",
        ),
        (["--nonsense", "1"], "nonsense"),
        (
            ["--checkpoint", "c", "--out", "b", "--name", "health"],
            "a model cannot be called 'health', because /tei/health is a route",
        ),
        (["--checkpoint", "c", "--out", "bundles/embed"], "a model cannot be called 'embed'"),
        (["--chekpoint", "c"], "unrecognized arguments: --chekpoint c; did you mean --checkpoint?"),
        (
            ["--checkpoint", "c", "--out", "b", "--dev", '{"pat": "x"}'],
            "dev.pat: there is no such setting; did you mean path?",
        ),
        (
            ["--checkpoint", "c", "--out", "b", "--dev", '{"path": x}'],
            'dev: is not JSON (Expecting value): give a path, or JSON such as {"path": ...} (given: ',
        ),
    ],
)
def test_wrong_settings_are_named(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert why in capsys.readouterr().err


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "nowhere", tmp_path / "b") == 1
    assert "is not a folder" in capsys.readouterr().err
    assert run(tmp_path, tmp_path / "b") == 1
    assert (
        "holds none of model.safetensors, pytorch_model.bin, adapter_config.json and task.json"
        in capsys.readouterr().err
    )


def test_demo_builds_what_is_not_there_and_leaves_the_rest(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--demo", "--models", str(checkpoint.parent), "--out", str(tmp_path), "--precision", "fp32"]
    assert main(arguments) == 0
    first = (tmp_path / "tiny" / "bundle.json").stat().st_ino
    assert main(arguments) == 0
    assert (tmp_path / "tiny" / "bundle.json").stat().st_ino == first
    assert "tiny is there" in capsys.readouterr().err
    assert is_current(tmp_path / "tiny", checkpoint, "fp32")
    assert not is_current(tmp_path / "tiny", checkpoint, "int8")
    task = json.loads((checkpoint / "task.json").read_text())
    (checkpoint / "task.json").write_text(json.dumps({**task, "max_tokens": 64}))
    assert main(arguments) == 0
    assert read_bundle(tmp_path / "tiny").manifest.task.max_tokens == 64


def test_demo_bundles_are_built_side_by_side_and_their_messages_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a", "b", "broken"]
    for name in names:
        write_checkpoint(tmp_path / "models" / name, SPECS["classification"])
    (tmp_path / "models" / "broken" / "config.json").write_text("{}", encoding="utf-8")
    arguments = ["--demo", "--models", str(tmp_path / "models"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--precision", "fp32"]) == 1
    shown = capsys.readouterr().err
    for name in names[:2]:
        lines = shown.partition(f"{tmp_path / 'out' / name}:\n")[2].splitlines()
        assert lines[0].startswith(f"  reading {tmp_path / 'models' / name} ... ")
        assert lines[5].startswith(f"{tmp_path / 'out' / name} is ready")
    assert "bert-export: " in shown.partition("broken:\n")[2]
    assert shown.endswith(f"bert-export: not built: {tmp_path / 'out' / 'broken'}\n")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names[:2]


def test_an_interrupt_ends_all_exports_of_demo_bundles(tmp_path: Path) -> None:
    for name in "ab":
        write_checkpoint(tmp_path / "models" / name, SPECS["classification"])
    arguments = ["--demo", "--models", str(tmp_path / "models"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "model_export.command", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    while not any(file.stat().st_size for file in tmp_path.glob("tmp*/*.json")):  # it has begun
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=300)
    assert process.returncode == 130 and shown.endswith("interrupted; what was not finished is not there\n")
    assert not list(tmp_path.glob("tmp*"))
    for finished in (tmp_path / "out").glob("*"):
        read_bundle(finished)


def test_the_export_of_a_demo_bundle_ends_where_ctrl_c_is_ignored(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "GRACE_S", 0)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = demo._Child(checkpoint, tmp_path / "out", [], 1, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    child.end()
    assert child.process.returncode in (130, -signal.SIGTERM)


def test_an_export_killed_in_the_middle_leaves_no_bundle(checkpoint: Path, tmp_path: Path) -> None:
    script = (
        "import os, signal, bert.files\n"
        "bert.files.sync = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from model_export.cli import main\n"
        f"main(['--checkpoint', {str(checkpoint)!r}, '--out', {str(tmp_path / 'b')!r}])\n"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == -9
    assert not (tmp_path / "b").exists()
    assert run(checkpoint, tmp_path / "b") == 0
    assert [file.name for file in tmp_path.iterdir()] == ["b"]  # what the killed one left is gone too


def test_export_needs_no_torch_and_help_no_onnx() -> None:
    heavy = ("torch", "transformers", "safetensors.torch")
    script = (
        "import sys; from model_export import cli; assert 'onnx' not in sys.modules\n"
        "from model_export import export\n"
        f"assert not [m for m in {heavy!r} if m in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    from model_export.cli import ExportSettings

    for field in ExportSettings.model_fields:
        assert f"--{field.replace('_', '-')}" in text
    assert all(field.description for field in ExportSettings.model_fields.values())


def test_a_dev_file_that_cannot_be_read_is_refused_before_a_graph_is_built(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = tmp_path / "dev.csv"
    dev.write_text("review,label\nfine,good\n", encoding="utf-8")
    assert main(["--checkpoint", str(checkpoint), "--out", str(tmp_path / "b"), "--dev", str(dev)]) == 1
    shown = capsys.readouterr().err
    assert "dev.csv" in shown and "building" not in shown
