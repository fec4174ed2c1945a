"""Sources in an object store: what is read is what lies on a disk, and what breaks off is named with its place.

The store is moto's server, a real S3 API.
"""

import gzip
import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert.errors import DataError
from tests.support.object_store import BUCKET, credentials, environment, object_store, put
from tests.support.raw_text import content, texts, write_jsonl, write_vocabulary
from tests.support.store_proxy import before
from training.corpus.documents import read_records, text_of
from training.corpus.prepare import prepare
from training.corpus.settings import PrepareSettings
from training.corpus.text_files import list_files

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with object_store(tmp_path_factory.mktemp("store") / "moto.log") as url:
        yield url


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, store: str) -> Path:
    """The same files in a folder and in the bucket, in names whose order is not that of their letters."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "a").mkdir()
    documents = texts(400)
    write_jsonl(folder / "a-b.jsonl", documents[:100])
    (folder / "a" / "b.jsonl.xz").write_bytes(lzma.compress((folder / "a-b.jsonl").read_bytes()))
    plain = "\n\n".join(documents[100:200]).encode()
    (folder / "c.txt.gz").write_bytes(gzip.compress(plain))
    (folder / "d.text.zst").write_bytes(pa.compress(plain, "zstd", asbytes=True))
    pq.write_table(pa.table({"text": documents[200:]}), folder / "e.parquet", row_group_size=64)
    (folder / "notes.md").write_text("no text")
    for file in folder.rglob("*"):
        if file.is_file():
            put(store, f"corpus/{file.relative_to(folder)}", file.read_bytes())
    return folder


def command(source: str, out: Path, vocabulary: Path, shard_mb: float) -> list[str]:
    made = [sys.executable, "-m", "training.commands.prepare", "--sources", source, "--output-dir", str(out)]
    return [*made, "--tokenizer", str(vocabulary), "--shard-mb", str(shard_mb), "--processes", "1"]


def run(command: list[str], url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=environment(url), capture_output=True, text=True)


def shards(folder: Path) -> dict[str, bytes]:
    return {name: each for name, each in content(folder).items() if name.startswith(("train", "held_out"))}


def test_a_bucket_gives_the_shards_of_its_files(tmp_path: Path, store: str, files: Path) -> None:
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    prepare(
        PrepareSettings(
            sources=[str(files)],
            output_dir=tmp_path / "disk",
            tokenizer=vocabulary,
            shard_mb=0.02,
            processes=1,
        )
    )
    done = run(command(f"s3://{BUCKET}/corpus", tmp_path / "store", vocabulary, 0.02), store)
    assert done.returncode == 0, done.stderr
    assert shards(tmp_path / "store") == shards(tmp_path / "disk")
    assert len(shards(tmp_path / "store")) > 40


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("corpus/a-b.jsonl", 100),
        ("corpus/*.gz", 100),
        ("corpus/**/b.*", 100),
        ("corpus/a", 100),
        ("corpus", 600),
    ],
)
def test_objects_patterns_and_folders_are_read(
    store: str, files: Path, path: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in credentials(store).items():
        monkeypatch.setenv(name, value)
    found = list_files([f"s3://{BUCKET}/{path}"])
    assert all(file.path.startswith(f"s3://{BUCKET}/corpus/") and file.size for file in found)
    read = [text_of(file, record.data) for file in found for record in read_records(file)]
    assert len(read) == count and all(read)
    after = [text_of(file, record.data) for file in found[:1] for record in read_records(file, skip=30)]
    assert after == read[30 : 30 + len(after)] and after


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (f"{BUCKET}/none.jsonl", "does not exist, or holds no file that ends in .jsonl, .ndjson"),
        (f"{BUCKET}/none-*.jsonl", "does not exist, or holds no file that ends in .jsonl, .ndjson"),
        ("no-bucket/a.jsonl", "cannot be read from its store: The specified bucket does not exist"),
        (f"{BUCKET}/corpus/notes.md", "has no ending that says its format"),
    ],
)
def test_what_is_not_there_is_named(
    store: str, files: Path, path: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in credentials(store).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError) as caught:
        list_files([f"s3://{path}"])
    assert str(caught.value).startswith(f"s3://{path}: {reason}")


def test_a_read_that_breaks_off_is_repeated_or_named(tmp_path: Path, store: str) -> None:
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    text = write_jsonl(tmp_path / "a.jsonl", texts(40_000)).read_bytes()
    put(store, "long.jsonl", text)
    source, out = f"s3://{BUCKET}/long.jsonl", tmp_path / "out"
    with before(store) as proxy:
        made = command(source, out, vocabulary, 4)
        proxy.cut_left = 1000
        failed = run(made, proxy.url)
        assert failed.returncode == 1
        assert (
            f"error: {source}: cannot be read: reading broke off at byte 0 of {len(text):,}:" in failed.stderr
        )
        assert "Traceback" not in failed.stderr and not (out / "corpus.json").exists()
        proxy.cut_left = 2
        done = run(made, proxy.url)
        assert done.returncode == 0, done.stderr
        assert proxy.cut_left == 0
    local = PrepareSettings(
        sources=[str(tmp_path / "a.jsonl")], output_dir=tmp_path / "disk", tokenizer=vocabulary, shard_mb=4
    )
    prepare(local)
    assert shards(out) == shards(tmp_path / "disk")


def test_an_object_is_streamed(store: str) -> None:
    """Eight blocks of what is read ahead pass through the memory of about two."""
    put(store, "large.txt", (b"a line of a text\n" * 200 + b"\n") * 20_000)
    program = f"""
import resource
from training.corpus.documents import read_records
from training.corpus.text_files import list_files
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(file,) = list_files(["s3://{BUCKET}/large.txt"])
records = read_records(file)
next(records)
before = peak()
print(file.size >> 20, sum(1 for _ in records), (peak() - before) >> 10)
"""
    ended = run([sys.executable, "-c", program], store)
    assert ended.returncode == 0, ended.stderr
    mib, records, grown_mib = map(int, ended.stdout.split())
    assert (mib, records) == (64, 19_999) and grown_mib < 32


def test_without_the_extra_it_is_named() -> None:
    program = """
import sys
sys.modules["s3fs"] = None
from training.corpus.text_files import list_files
list_files(["s3://texts/a.jsonl"])
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    error = "DataError: s3://texts/a.jsonl: Install s3fs to access S3: pip install 'bert-train-serve[store]'"
    assert ended.stderr.rstrip().endswith(error)
