"""No request holds the event loop: the worst bodies known, sent to a server while another client asks for /health/live."""

import gzip
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest

from service import metrics
from tests.support.live import Live, serving
from tests.support.loop_watch import ALLOWED, ATTEMPTS, LoopWatch, calibrate, watching
from tests.support.open_ner import write_wide_bundle
from tests.support.tiny import SPECS, write_tiny_bundle
from tests.support.tokenizers import backend_of, tokenizer_json
from tests.support.wire import read_all, statuses

SIZE = 2_000_000
"""Bytes of a body, just under the limit."""


@contextmanager
def asking_live(live: Live, watch: LoopWatch) -> Iterator[list[int]]:
    """Ask for /health/live on a connection of its own until the block ends."""
    statuses, is_over = list[int](), threading.Event()

    def ask() -> None:
        watch.clients.add(threading.get_ident())
        connection = live.connect()
        while True:
            connection.request("GET", "/health/live")
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
            if is_over.wait(0.005):
                break
        connection.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        is_over.set()
        thread.join(20)


def filled(piece: bytes, before: bytes = b'{"text": [', after: bytes = b'"a"]}') -> bytes:
    return before + piece * ((SIZE - len(before) - len(after)) // len(piece)) + after


def listed(**fields: object) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


MARKED = "가" + "\u0301" * 600_000
"""A syllable that some vocabularies have in two pieces, of which only the last one ends after the marks."""
BROKEN = b'"\\ud800"]}'
BODIES: dict[str, tuple[int, str, Callable[[], bytes]]] = {
    "half a pair after numbers": (422, "/classify", lambda: filled(b"1,", after=BROKEN)),
    "half a pair after texts": (422, "/classify", lambda: filled(b'"ab",', after=BROKEN)),
    "half a pair after one text": (422, "/classify", lambda: filled(b"\\n", b'{"text": "', b'\\ud800"}')),
    "half a pair in a deep place": (422, "/classify", lambda: filled(b"[[1]],", after=b'{"a": "\\ud800"}]}')),
    "halves of pairs": (422, "/classify", lambda: filled(b'"\\ud800",')),
    "numbers": (422, "/classify", lambda: filled(b"1,")),
    "texts": (422, "/classify", lambda: filled(b'"a",')),
    "empty texts": (422, "/classify", lambda: filled(b'"",')),
    "nulls": (422, "/classify", lambda: filled(b"null,")),
    "lists": (422, "/classify", lambda: filled(b"[],")),
    "objects": (422, "/classify", lambda: filled(b'{"a":{}},')),
    "long numbers": (422, "/classify", lambda: filled(b"1" * 4000 + b",")),
    "one long number": (400, "/classify", lambda: filled(b"1", b'{"text": "a", "top_k": ', b"}")),
    "names": (422, "/classify", lambda: b"{" + b",".join(b'"%x":1' % i for i in range(180_000)) + b"}"),
    "one name again and again": (422, "/classify", lambda: filled(b'"text": 1,', b"{", b'"text": "a"}')),
    "nested deep": (400, "/classify", lambda: b"[" * SIZE),
    "not JSON at its end": (422, "/classify", lambda: filled(b'"a",', after=b"!")),
    "escapes": (422, "/tokenize", lambda: filled(b"\\\\", b'{"text": "', b'", "model": 3}')),
    "white space": (422, "/classify", lambda: filled(b" ", b"{", b"}")),
    "wrong items": (422, "/similarity", lambda: listed(text=[1] * 512, candidates=[[["a"]]] * 512)),
    "a text without a space": (200, "/ner", lambda: listed(text="a" * 500_000)),
    "a text of spaces": (422, "/qa", lambda: filled(b" ", b'{"question": "who", "context": "', b'"}')),
    "a text to be cut": (200, "/classify", lambda: filled(b"a ", b'{"truncate": true, "text": "', b'"}')),
    "a document": (200, "/ner", lambda: listed(text="angela merkel met " * 2_000)),
    "many short texts": (200, "/classify", lambda: listed(text=["a"] * 512, model="topics")),
    "many questions": (200, "/qa", lambda: listed(question=["who"] * 256, context=["a"] * 256, top_k=20)),
    "many answers with many marks": (422, "/qa", lambda: listed(question=["a"] * 80, context=MARKED)),
    "entities with many marks": (200, "/ner", lambda: listed(text=MARKED)),
    "entities between many joiners": (
        200,
        "/ner",
        lambda: listed(text="a" + "\u200d" * 600_000, left_out=["symbols"]),
    ),
    "few entities of long words": (200, "/ner", lambda: listed(text=["a" + "\u0301" * 30_000] * 20)),
    "long answers": (200, "/qa", lambda: listed(question=["a"] * 10, context="a" * 500_000)),
    "many vectors": (200, "/embed", lambda: listed(text=["a film"] * 512)),
    "many vectors as a file": (
        200,
        "/embed",
        lambda: listed(text=["a film"] * 512, encoding_format="binary"),
    ),
    "many windows": (200, "/classify", lambda: listed(text="a film " * 20_000, windows="mean")),
    "many texts in windows": (200, "/classify", lambda: listed(text=["a " * 80] * 512, windows="max")),
    "many pairs": (200, "/similarity", lambda: listed(text=["a"] * 256, candidates=["a"] * 256)),
    "wrong lists of choices": (
        422,
        "/multiple-choice",
        lambda: filled(b'[[]],"",', b'{"prompt": "a", "choices": [', b"[]]}"),
    ),
    "many choices": (
        200,
        "/multiple-choice",
        lambda: listed(prompt=["who"] * 100, choices=[["a"] * 4] * 100),
    ),
    "long choices": (
        200,
        "/multiple-choice",
        lambda: listed(prompt=["who"] * 80, choices=["a " * 20_000, "é" * 10_000], truncate=True),
    ),
    "many candidates": (200, "/fill-mask", lambda: listed(text=["[MASK]" * 20] * 60, top_k=100)),
    "long candidates": (200, "/fill-mask", lambda: listed(text="\n" * 150_000 + "[MASK]", top_k=100)),
    "tokens": (200, "/tokenize", lambda: listed(text="a " * 16_000)),
    "many texts' tokens": (200, "/tokenize", lambda: listed(text=["a " * 30] * 512)),
}
"""Expected status, path and body."""
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [512]}
WIRE_BODIES: dict[str, tuple[int, str, Callable[[], bytes]]] = {
    "token ids": (400, "/v1/embeddings", lambda: filled(b"1,", b'{"model": "meaning", "input": [')),
    "few token ids": (400, "/v1/embeddings", lambda: listed(model="meaning", input=[1] * 10_000)),
    "many vectors": (200, "/v1/embeddings", lambda: listed(model="meaning", input=["a film"] * 512)),
    "many vectors in base64": (
        200,
        "/v1/embeddings",
        lambda: listed(model="meaning", input=["a film"] * 512, encoding_format="base64"),
    ),
    "many vectors of all types": (
        200,
        "/v2/embed",
        lambda: listed(
            texts=["a film"] * 512, embedding_types=["float", "float16", "binary", "ubinary", "base64"]
        ),
    ),
    "many documents": (
        200,
        "/v1/rerank",
        lambda: listed(query="a", documents=[{"text": "a"}] * 511, return_documents=True),
    ),
    "wrong documents": (400, "/rerank", lambda: listed(query="a", documents=[{"a": 1}] * 4_000)),
    "lists of texts": (422, "/tei/mood/predict", lambda: filled(b'["a"],', b'{"inputs": [')),
    "many labels": (200, "/tei/topics/predict", lambda: listed(inputs=[["a"]] * 512)),
    "tokens with bytes": (200, "/tei/meaning/tokenize", lambda: listed(inputs="é " * 16_000)),
    "one text of many bytes": (200, "/tei/meaning/tokenize", lambda: listed(inputs="\u00e9" * 300_000)),
    "many ids": (200, "/tei/meaning/decode", lambda: listed(ids=[5] * 10_000)),
    "many questions": (
        200,
        "/hf/reader",
        lambda: listed(inputs=[{"question": "who", "context": "a"}] * 256, parameters={"top_k": 20}),
    ),
    "long answers": (
        200,
        "/hf/reader",
        lambda: listed(inputs=[{"question": "a", "context": "a" * 180_000}] * 10, parameters={"top_k": 2}),
    ),
    "many entities": (
        200,
        "/v2/models/names/infer",
        lambda: listed(inputs=[TENSOR | {"shape": [1], "data": ["angela merkel met " * 2_000]}]),
    ),
    "wrong questions": (422, "/hf/reader", lambda: listed(inputs=[{"question": "who"}] * 3_000)),
    "many sentences": (
        200,
        "/hf/meaning",
        lambda: listed(inputs={"source_sentence": "a", "sentences": ["a"] * 511}),
    ),
    "a tensor of texts": (
        200,
        "/v2/models/meaning/infer",
        lambda: listed(inputs=[TENSOR | {"data": ["a film"] * 512}]),
    ),
    "a tensor of lists": (
        400,
        "/v2/models/meaning/infer",
        lambda: listed(inputs=[TENSOR | {"data": [[]] * 10_000}]),
    ),
    "many instances": (200, "/v1/models/mood:predict", lambda: listed(instances=[{"text": "a"}] * 512)),
    "instances of many names": (
        422,
        "/v1/models/mood:predict",
        lambda: listed(instances=[{f"{i} {j}": 1 for j in range(10)} for i in range(400)]),
    ),
    "too many instances": (422, "/v1/models/mood:predict", lambda: listed(instances=[{}] * 8_000)),
}
"""The same for the wires."""


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with other vocabularies; two of the tokenizers cut texts at blanks only."""
    folder = tmp_path_factory.mktemp("others")
    for kind, task in (("bpe", "names"), ("unigram", "names"), ("wordpiece", "reader")):
        size = backend_of(kind).get_vocab_size()
        write_tiny_bundle(
            folder / kind, kind, SPECS[task], 0, vocab_size=size, tokenizer_json=tokenizer_json(kind)
        )
    with serving(bundles=[folder], max_queue_tokens=131_072) as running:
        yield running


@pytest.mark.parametrize("name", BODIES)
def test_no_body_holds_the_event_loop(live: Live, name: str) -> None:
    expected, path, make = BODIES[name]
    assert_loop_stays_free(live, lambda: live.post(path, make()).status, expected)


@pytest.mark.parametrize("name", WIRE_BODIES)
def test_no_body_of_a_wire_holds_the_event_loop(live: Live, name: str) -> None:
    expected, path, make = WIRE_BODIES[name]
    assert_loop_stays_free(live, lambda: live.post(path, make()).status, expected)


NAMES = [f"{one} {other}" for one in "abcdefgh" for other in "abcdefgh"]
LABELLED: dict[str, tuple[set[int], Callable[[], bytes]]] = {
    "very many spans over the threshold": (
        {200},
        lambda: listed(
            text="a warm film " * 40, labels=NAMES[:60], threshold=0.01, flat=False, multi_label=True
        ),
    ),
    "many texts": ({200}, lambda: listed(text=["a film"] * 512, labels=NAMES[:20])),
    "many short words": ({413}, lambda: filled(b".", b'{"labels": ["a"], "text": "', b'"}')),
    "many unlike words": (
        {413},
        lambda: listed(text=" ".join(f"{n:x}" for n in range(300_000)), labels=["a"]),
    ),
    "a long word": ({200}, lambda: listed(text="a" * 1_000_000, labels=["a"])),
}
"""Expected status and body of requests with labels for entities."""


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service that finds entities of a request's labels."""
    folder = tmp_path_factory.mktemp("labelled")
    write_wide_bundle(folder / "open", "open")
    with serving(bundles=[folder]) as running:
        yield running


@pytest.mark.parametrize("name", LABELLED)
def test_no_request_with_labels_holds_the_event_loop(labelled: Live, name: str) -> None:
    expected, make = LABELLED[name]
    assert_loop_stays_free(labelled, lambda: labelled.post("/ner", make()).status, expected)


ODD_TEXTS = {
    "marks": "a" + "\u0301" * 400_000,
    "letters": "qxz" * 200_000,
    "blanks": " " * 1_000_000,
    "joiners": "a" + "\u200d" * 200_000,
    "emoji": "☀\ufe0f" * 60_000,
}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("text", ODD_TEXTS)
def test_no_text_that_its_tokenizer_cannot_cut_holds_the_event_loop(
    others: Live, kind: str, text: str
) -> None:
    """All of the text is tokenised in one go, to hundreds of thousands of tokens by some tokenizers."""
    body = listed(text=ODD_TEXTS[text], model=kind)
    assert_loop_stays_free(others, lambda: others.post("/tokenize", body).status, {200, 413})


def test_no_walk_over_marks_holds_the_event_loop(others: Live) -> None:
    """Each span that ends at the first piece of the syllable ends after all marks."""
    body = listed(question=["a"] * 8, context=MARKED)
    assert_loop_stays_free(others, lambda: others.post("/qa", body).status, 200)


def test_no_binary_tensor_holds_the_event_loop(live: Live) -> None:
    """2 MB of empty texts: four bytes each."""
    head = listed(inputs=[TENSOR | {"parameters": {"binary_data_size": SIZE}}])
    sizes = {"inference_header_content_length": str(len(head))}
    path = "/v2/models/meaning/infer"
    assert_loop_stays_free(live, lambda: live.post(path, head + bytes(SIZE), **sizes).status, 400)


CHUNKED = (
    b"POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: application/%s\r\ntransfer-encoding: chunked\r\n\r\n"
)
CLOSE = b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
FLOODS: dict[str, tuple[int, bytes]] = {
    "pipelined requests": (429, b"GET / HTTP/1.1\r\nhost:\r\n\r\n" * 10_000),
    "pipelined requests that offer HTTP/2": (
        429,
        b"GET / HTTP/1.1\r\nhost:\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" * 5_000,
    ),
    "headers": (431, b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 100_000),
    "line ends": (431, b"\r\n" * 500_000),
    "chunks": (200, CHUNKED % b"json" + b"1\r\na\r\n" * 500_000 + b"0\r\n\r\n" + CLOSE),
    "chunks of a request that was refused": (
        200,
        CHUNKED % b"text" + b"1\r\na\r\n" * 500_000 + b"0\r\n\r\n" + CLOSE,
    ),
}
"""Status of the last response, and what is sent."""


@pytest.mark.parametrize("name", FLOODS)
def test_no_connection_holds_the_event_loop(live: Live, name: str) -> None:
    expected, flood = FLOODS[name]

    def send() -> int:
        with socket.create_connection(live.connect_to(), timeout=60) as raw:
            raw.sendall(flood)
            return statuses(read_all(raw))[-1]

    assert_loop_stays_free(live, send, expected)


def test_no_compressed_body_holds_the_event_loop(live: Live) -> None:
    """2 MB of empty blocks, each with its own Huffman codes: 100 ms of zlib."""
    blocks = bytes.fromhex(
        "04c081000000000090ff6b100007020000000040feaf41001c080000000000f9bf060170200000000000e4ff1a"
    )
    data = gzip.compress(b"")[:10] + blocks * (SIZE // len(blocks)) + b"\x01\x00\x00\xff\xff" + bytes(8)
    assert_loop_stays_free(live, lambda: live.post("/ner", data, content_encoding="gzip").status, 400)


LINES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "blank lines": ("/ner", lambda: b"\n" * SIZE),
    "blank lines between others": ("/ner", lambda: (b"\n" * 65_000 + b"1\n") * 250),
    "a short line in each block": ("/ner", lambda: (b"\n" * 1_000 + b"1\n") * 8_000),
    "wrong lines": ("/ner", lambda: b"1\n" * 5_000),
    "short lines": ("/classify", lambda: b'{"text": "a"}\n' * 1_500),
    "a line without an end": ("/ner", lambda: b"a" * 8 * SIZE),
    "a long line of half pairs": ("/classify", lambda: filled(b'"\\ud800",') + b"\n"),
    "long lines": ("/classify", lambda: (filled(b"a ", b'{"truncate": true, "text": "', b'"}') + b"\n") * 3),
    "long responses": ("/embed", lambda: (listed(text=["a film"] * 500) + b"\n") * 10),
}
"""Path and body of requests of many lines."""


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize("name", LINES)
def test_no_request_of_lines_holds_the_event_loop(live: Live, name: str, coding: str) -> None:
    path, make = LINES[name]
    body = gzip.compress(make()) if coding == "gzip" else make()

    def send() -> int:
        return live.post(path, body, content_type="application/x-ndjson", content_encoding=coding).status

    assert_loop_stays_free(live, send, 200)


@pytest.mark.parametrize("path", ["/openapi.json", "/metrics", "/models", "/docs", "/"])
def test_no_page_holds_the_event_loop(live: Live, path: str) -> None:
    assert_loop_stays_free(live, lambda: live.get(path).status, 200)


def test_a_waiting_event_loop_asks_early_for_the_interpreters_lock(bundles: Path) -> None:
    """Python waits 5 ms by default, and each brief release of the lock in numpy starts that wait again."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        with serving(bundles=[bundles / "mood"]):
            assert sys.getswitchinterval() <= 0.001
    finally:
        sys.setswitchinterval(before)


def test_the_document_of_the_interface_is_made_before_the_first_request(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"]) as started:
        app = started.server.config.app
        assert isinstance(app, FastAPI)
        assert app.openapi_schema is not None


def test_a_scrape_is_made_in_a_thread(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, asked = threading.Event(), threading.Event()

    def held(registry: CollectorRegistry) -> bytes:
        asked.set()
        assert gate.wait(20)
        return generate_latest(registry)

    monkeypatch.setattr(metrics, "generate_latest", held)
    with ThreadPoolExecutor(1) as pool:
        scrape = pool.submit(live.get, "/metrics")
        assert asked.wait(20)
        assert live.get("/health/live").status == 200
        gate.set()
        assert b"bert_ready" in scrape.result().body


def test_a_thread_that_keeps_the_interpreters_lock_is_seen(live: Live) -> None:
    work = range(4 * ALLOWED * 500_000)
    with watching(live) as watch, ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 0.1).result()  # the watch knows the thread before it works
        pool.submit(sum, work).result()  # one call, in which the lock is not given away
        assert live.get("/health/live").status == 200
    assert watch.longest_s > ALLOWED * calibrate()


def assert_loop_stays_free(live: Live, send: Callable[[], int], expected: int | set[int]) -> None:
    allowed_s, held = ALLOWED * calibrate(), list[tuple[float, str]]()
    for _ in range(ATTEMPTS):
        with watching(live) as watch, asking_live(live, watch) as statuses:
            assert send() in (expected if isinstance(expected, set) else {expected})
        assert set(statuses) == {200}
        held.append((watch.longest_s, watch.by))
        if watch.longest_s <= allowed_s:
            return
    told = ", ".join(f"{1000 * seconds:.0f} ms by {by}" for seconds, by in held)
    pytest.fail(f"the loop was held for {told}; {1000 * allowed_s:.0f} ms are allowed")
