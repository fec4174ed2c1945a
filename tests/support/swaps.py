"""Models that change while clients ask."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert.tasks.spec import TaskSpec
from tests.support.fleet import Fleet
from tests.support.live import Reply
from tests.support.tiny import MAX_TOKENS, tiny_tokenizer, write_tiny_bundle

KEY = "correct-horse"
TEXT = {"text": "a warm film was dull and the film was long"}
OTHER = TaskSpec("classification", ("bad", "fine", "good"), max_tokens=MAX_TOKENS)


def manage(running: Fleet, name: str, action: str) -> Reply:
    return running.post(f"/models/{name}/{action}", {}, x_api_key=KEY)


def put(folder: Path, name: str, spec: TaskSpec, seed: int, **more: Any) -> None:
    """Replace a bundle as an export does: written aside, and renamed into place."""
    aside = folder.parent.parent / "aside"
    write_tiny_bundle(aside, name, spec, seed, **more)
    if folder.exists():
        folder.rename(folder.parent.parent / "old")
    aside.rename(folder)
    shutil.rmtree(folder.parent.parent / "old", ignore_errors=True)


def other_tokenizer() -> tuple[str, int]:
    """Return a tokenizer with the words in other places, and the number of its pieces."""
    content = json.loads(tiny_tokenizer().to_json())
    vocabulary = content["model"]["vocab"]
    words = [word for word in vocabulary if not word.startswith("[")]
    ids = sorted(vocabulary[word] for word in words)
    vocabulary |= dict(zip(words, reversed(ids), strict=True))
    return json.dumps(content), len(vocabulary)


@dataclass
class Asking:
    """Clients that ask over and over, and what they were answered."""

    running: Fleet
    statuses: dict[int, int] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    """Answers that differ from any before."""

    @contextmanager
    def all_the_time(self, clients: int = 3) -> Iterator[None]:
        ended = threading.Event()
        threads = [threading.Thread(target=self.ask, args=(ended,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def ask(self, ended: threading.Event) -> None:
        while not ended.is_set():
            reply = self.running.post("/classify", {**TEXT, "model": "mood"})
            self.statuses[reply.status] = self.statuses.get(reply.status, 0) + 1
            answer = rounded(reply)
            if answer not in self.answers:
                self.answers.append(answer)


def rounded(reply: Reply) -> str:
    """Return labels and scores without the rounding by which texts of one batch differ."""
    scores = reply.json["results"][0]["scores"]
    return str([(each["label"], round(each["score"], 3)) for each in scores])


def answer(running: Fleet) -> str:
    return rounded(running.post("/classify", {**TEXT, "model": "mood"}))
