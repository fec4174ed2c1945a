"""Find and mask personal data with Presidio; the entities come from POST /ner.

pip install presidio-analyzer
python examples/wires/with_presidio.py http://127.0.0.1:8000 ner
"""

import json
import sys
from urllib.request import Request, urlopen

from presidio_analyzer import AnalyzerEngine, RecognizerRegistry, RecognizerResult, RemoteRecognizer
from presidio_analyzer.nlp_engine import NlpEngineProvider

ENTITIES = {"PER": "PERSON", "LOC": "LOCATION", "ORG": "ORGANIZATION"}
"""The model's labels → Presidio's."""


class BertRecognizer(RemoteRecognizer):
    """Asks the service for the entities of a text. Both count positions in code points."""

    def __init__(self, url: str, model: str) -> None:
        """Ask `model` of the service at `url`."""
        super().__init__(list(ENTITIES.values()), "BertRecognizer", "en", "1")
        self.url, self.model = url, model

    def load(self) -> None:
        """No-op: the service has the model."""

    def get_supported_entities(self) -> list[str]:
        """Return the kinds of entities that the service finds."""
        return self.supported_entities

    def analyze(self, text, entities, nlp_artifacts=None) -> list[RecognizerResult]:
        """Return the entities of a text."""
        body = json.dumps({"text": text, "model": self.model}).encode()
        request = Request(f"{self.url}/ner", body, {"content-type": "application/json"})
        with urlopen(request, timeout=30) as response:
            (result,) = json.load(response)["results"]
        return [
            RecognizerResult(ENTITIES[found["label"]], found["start"], found["end"], found["score"])
            for found in result["entities"]
            if ENTITIES.get(found["label"]) in (entities or self.supported_entities)
        ]


def main(url: str, model: str, text: str = "Angela Merkel met engineers from Siemens in Munich.") -> None:
    """Mask the entities of a text."""
    registry = RecognizerRegistry()
    registry.add_recognizer(BertRecognizer(url, model))
    engine = NlpEngineProvider(
        nlp_configuration={"nlp_engine_name": "no_op", "models": [{"lang_code": "en", "model_name": "none"}]}
    ).create_engine()
    found = AnalyzerEngine(registry=registry, nlp_engine=engine).analyze(text, language="en")
    for each in sorted(found, key=lambda each: each.start, reverse=True):
        text = f"{text[: each.start]}<{each.entity_type}>{text[each.end :]}"
    print(json.dumps({"entities": [[e.entity_type, e.start, e.end] for e in found], "text": text}))


if __name__ == "__main__":
    main(*sys.argv[1:])
