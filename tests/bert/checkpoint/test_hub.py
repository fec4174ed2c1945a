"""Models of the hub, downloaded by the real huggingface_hub from a hub on this machine."""

import json
import resource
import shutil
from pathlib import Path

import pytest

from bert.checkpoint import cached_files
from bert.checkpoint import hub as downloads
from bert.checkpoint.weights import file_hashes
from bert.errors import CheckpointError
from bert.names import HubName
from tests.support.checkpoints import SPECS
from tests.support.families import write_relative
from tests.support.hub_process import RESOLVE, resolve, start
from tests.support.local_hub import TOKEN, LocalHub, commit_of

NEEDED = {"config.json", "model.safetensors", "vocab.txt"}


def files(folder: str) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in Path(folder).rglob("*") if file.is_file()}


def left_overs(variables: dict[str, str]) -> list[Path]:
    return list(Path(variables["HF_HOME"]).rglob("*.incomplete"))


def changed(checkpoint: Path, folder: Path, **values: object) -> Path:
    """Return a copy of the checkpoint with other values in its config.json."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return folder


def test_only_the_files_that_are_read_are_downloaded_and_once(
    hub: LocalHub, variables: dict[str, str], checkpoint: Path
) -> None:
    folder, said = resolve("org/tiny", variables)
    assert "downloading org/tiny (0.2 MB) ... " in said
    assert files(folder) == hub.downloaded() == NEEDED
    assert Path(folder).name == commit_of(checkpoint)
    assert cached_files.origin(Path(folder)) == {"repo": "org/tiny", "commit": commit_of(checkpoint)}
    hub.requests.clear()
    again, said = resolve("org/tiny", variables)
    assert again == folder and "downloading" not in said
    assert hub.requests == ["GET /api/models/org/tiny/revision/main"]  # main may have moved
    hub.requests.clear()
    assert resolve(f"org/tiny@{commit_of(checkpoint)}", variables)[0] == folder
    assert hub.requests == []  # a commit has not
    assert resolve("org/tiny", {**variables, "HF_HUB_OFFLINE": "1"}) == (folder, "")
    assert hub.requests == []


def test_a_tag_names_the_files_of_its_time(
    hub: LocalHub, variables: dict[str, str], checkpoint: Path, tmp_path: Path
) -> None:
    old = changed(checkpoint, tmp_path / "old", seed_of_the_test=1)
    hub.repos["org/tiny"].tags["v1"] = old
    assert Path(resolve("org/tiny@v1", variables)[0]).name == commit_of(old)
    assert Path(resolve("org/tiny", variables)[0]).name == commit_of(checkpoint)


def test_a_failure_says_what_to_do(hub: LocalHub, variables: dict[str, str]) -> None:
    assert "no revision 'v9': name a commit, a tag" in resolve("org/tiny@v9", variables)[1]
    assert "no folder org/none here, and no model org/none at http" in resolve("org/none", variables)[1]
    offline = resolve("org/tiny", {**variables, "HF_HUB_OFFLINE": "1"})[1]
    assert "HF_HUB_OFFLINE is set: download it once without that" in offline
    unreachable = resolve("org/tiny", {**variables, "HF_ENDPOINT": "http://127.0.0.1:1"})[1]
    assert (
        "http://127.0.0.1:1 does not answer ([Errno 111]" in unreachable
        and "check the network" in unreachable
    )


def test_a_gated_model_needs_a_token(hub: LocalHub, variables: dict[str, str]) -> None:
    hub.repos["org/tiny"].gated = True
    said = resolve("org/tiny", variables)[1]
    assert f"org/tiny is gated: accept its terms at {hub.url}/org/tiny, and set HF_TOKEN" in said
    assert "(none is set)" in said
    assert "(the token in use was refused)" in resolve("org/tiny", {**variables, "HF_TOKEN": "hf_other"})[1]
    assert files(resolve("org/tiny", {**variables, "HF_TOKEN": TOKEN})[0]) == NEEDED


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_is_cut_off_goes_on_where_it_was(
    hub: LocalHub, variables: dict[str, str], tmp_path: Path, ranges: bool
) -> None:
    folder = tmp_path / "large"  # huggingface_hub keeps what came in parts of 10 MiB
    write_relative(folder, "distilbert", SPECS["classification"], max_position_embeddings=250_000)
    hub.add("org/large", folder)
    hub.ranges, hub.cut = ranges, {"model.safetensors": 1}
    found, said = resolve("org/large", variables)
    assert (Path(found) / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert "(32.1 MB) ... 30 % " in said
    assert len(hub.asked("[Range]")) == 1


def test_a_download_that_never_ends_is_given_up_and_leaves_nothing_half(
    hub: LocalHub, variables: dict[str, str]
) -> None:
    hub.cut = {"model.safetensors": 100}
    folder, said = resolve("org/tiny", variables)
    assert not folder and "the download of org/tiny was cut off" in said and "run it again" in said
    assert not left_overs(variables)
    hub.cut = {}
    hub.requests.clear()
    assert files(resolve("org/tiny", variables)[0]) == NEEDED
    assert not hub.asked("/config.json")  # whole files were kept


@pytest.mark.usefixtures("nothing_compiled")
def test_a_full_disk_is_named_and_leaves_nothing_half(hub: LocalHub, variables: dict[str, str]) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    folder, said = resolve("org/tiny", variables, limit)
    assert not folder and "File too large; make room, or set HF_HOME" in said
    assert not left_overs(variables)
    assert files(resolve("org/tiny", variables)[0]) == NEEDED


def test_a_damaged_file_of_the_cache_is_named(hub: LocalHub, variables: dict[str, str]) -> None:
    folder = Path(resolve("org/tiny", variables)[0])
    hashes = file_hashes(folder)
    cached_files.check_whole(folder, hashes, hashes)
    blob = (folder / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors is damaged: delete {blob}, and run it again"
    ):
        cached_files.check_whole(folder, NEEDED)
    said = resolve("org/tiny", variables)[1]
    assert f"model.safetensors is damaged: delete {blob}, and run it again" in said
    blob.unlink()
    vocab = (folder / "vocab.txt").resolve()
    vocab.write_bytes(vocab.read_bytes()[:-2] + b"x\n")
    assert f"vocab.txt is damaged: delete {vocab}, and run it again" in resolve("org/tiny", variables)[1]
    vocab.unlink()
    again, _ = resolve("org/tiny", variables)
    assert Path(again) == folder and file_hashes(folder) == hashes


def test_the_space_is_looked_at_before_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    downloads._check_space(HubName("org/tiny"), 9 * 10**8)
    with pytest.raises(CheckpointError, match=r"needs 1,000 MB in .*, and 1,000 MB are free: make room"):
        downloads._check_space(HubName("org/tiny"), 10**9)


def test_a_cache_that_cannot_be_looked_at_does_not_end_the_look_at_the_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The home of another user cannot be looked into; for root a name that is too long fails in the same way."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / ("a" * 300) / "hub"))
    downloads._check_space(HubName("org/tiny"), 1)


def test_two_programs_download_a_file_once(hub: LocalHub, variables: dict[str, str]) -> None:
    hub.pause_s = 0.5
    both = [start(["-c", RESOLVE, "org/tiny"], variables) for _ in range(2)]
    found = [process.communicate(timeout=300)[0].strip() for process in both]
    assert found[0] == found[1] and files(found[0]) == NEEDED
    assert len([line for line in hub.asked("model.safetensors") if line.startswith("GET")]) == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"alibi_starting_size": 512}, "'alibi_starting_size'"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
    ],
)
def test_a_model_that_is_not_read_is_refused_before_its_weights_are_downloaded(
    hub: LocalHub,
    variables: dict[str, str],
    checkpoint: Path,
    tmp_path: Path,
    values: dict[str, object],
    reason: str,
) -> None:
    hub.add("org/other", changed(checkpoint, tmp_path / "other", **values))
    folder, said = resolve("org/other", variables)
    assert not folder and said.startswith("org/other on the hub: ") and reason in said
    assert hub.downloaded() == {"config.json"}


def test_a_repository_without_a_checkpoint_is_refused(
    hub: LocalHub, variables: dict[str, str], checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/model.gguf").write_text("no weights of a transformer")
    hub.add("org/empty", tmp_path / "empty")
    assert "it holds no config.json" in resolve("org/empty", variables)[1]
    shutil.copytree(checkpoint, tmp_path / "converted")
    for name in ("model.safetensors", "pytorch_model.bin"):
        (tmp_path / "converted" / name).unlink()
    hub.add("org/converted", tmp_path / "converted")
    said = resolve("org/converted", variables)[1]
    assert "neither model.safetensors nor pytorch_model.bin" in said


PICKLED = ["config.json", "pytorch_model.bin"]
SHARDS = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
]
SENTENCES = ["1_Pooling/config.json", "2_Dense/config.json", "model.safetensors", "modules.json"]


@pytest.mark.parametrize(
    ("wanted", "others"),
    [
        (PICKLED, ["training_args.bin", "optimizer.pt", "modeling.py", "rust_model.ot"]),
        (["model.safetensors"], ["pytorch_model.bin", "model.fp16.safetensors", "adapter_model.safetensors"]),
        (SHARDS, ["pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"]),
        (["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"], ["flax_model.msgpack"]),
        (
            [*SENTENCES, "2_Dense/model.safetensors"],
            ["2_Dense/pytorch_model.bin", "openvino/model.safetensors"],
        ),
        ([*SENTENCES, "2_Dense/pytorch_model.bin"], ["pytorch_model.bin", "onnx/config.json"]),
        (["adapter_config.json", "adapter_model.safetensors", "task.json"], ["adapter_model.bin"]),
        (["adapter_config.json", "adapter_model.bin"], ["adapter_model.pt"]),
    ],
)
def test_the_files_that_are_read(wanted: list[str], others: list[str]) -> None:
    assert downloads.wanted_files([*wanted, *others]) == sorted(wanted)


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        CheckpointError, match=r"install huggingface_hub: pip install \"\.\[export\]\" in a clone"
    ):
        downloads.commit_of(HubName("org/tiny"))
