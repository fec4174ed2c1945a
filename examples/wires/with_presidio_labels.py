"""Find and mask personal data with Presidio; a GLiNER finds the entities of your labels, by POST /ner.

In place of Presidio's GLiNERRecognizer, which loads torch and the model into your process.

pip install presidio-analyzer
python examples/wires/with_presidio_labels.py http://127.0.0.1:8000 gliner_multi_pii-v1
"""

import json
import sys
from urllib.request import Request, urlopen

from presidio_analyzer import AnalyzerEngine, RecognizerRegistry, RecognizerResult, RemoteRecognizer
from presidio_analyzer.nlp_engine import NlpEngineProvider

ENTITIES = {
    "person": "PERSON",
    "organization": "ORGANIZATION",
    "city": "LOCATION",
    "country": "LOCATION",
    "phone number": "PHONE_NUMBER",
    "email": "EMAIL_ADDRESS",
}
"""Labels that the model reads → Presidio's."""


class BertLabelsRecognizer(RemoteRecognizer):
    """Asks the service for the entities of labels. Both count positions in code points."""

    def __init__(
        self,
        url: str,
        model: str,
        entity_mapping: dict[str, str] = ENTITIES,
        threshold: float = 0.3,
        flat_ner: bool = True,
        multi_label: bool = False,
    ) -> None:
        """Ask `model` of the service at `url`; the rest is as in GLiNERRecognizer."""
        super().__init__(sorted(set(entity_mapping.values())), "BertLabelsRecognizer", "en", "1")
        self.url, self.entity_mapping = url, entity_mapping
        self.options = {"model": model, "threshold": threshold, "flat": flat_ner, "multi_label": multi_label}

    def load(self) -> None:
        """No-op: the service has the model."""

    def get_supported_entities(self) -> list[str]:
        """Return the kinds of entities that the service finds."""
        return self.supported_entities

    def analyze(self, text, entities, nlp_artifacts=None) -> list[RecognizerResult]:
        """Return the entities of a text. All labels are always read: a score depends on the labels beside it."""
        wanted = entities or self.supported_entities
        body = json.dumps({"text": text, "labels": list(self.entity_mapping), **self.options}).encode()
        request = Request(f"{self.url}/ner", body, {"content-type": "application/json"})
        with urlopen(request, timeout=30) as response:
            (result,) = json.load(response)["results"]
        return [
            RecognizerResult(kind, found["start"], found["end"], found["score"])
            for found in result["entities"]
            if (kind := self.entity_mapping[found["label"]]) in wanted
        ]


def main(url: str, model: str, text: str = "Ada Lovelace wrote to Charles Babbage in London.") -> None:
    """Mask the entities of a text."""
    registry = RecognizerRegistry()
    registry.add_recognizer(BertLabelsRecognizer(url, model))
    # The model reads text, so Presidio needs no spaCy model.
    engine = NlpEngineProvider(
        nlp_configuration={"nlp_engine_name": "no_op", "models": [{"lang_code": "en", "model_name": "none"}]}
    ).create_engine()
    found = AnalyzerEngine(registry=registry, nlp_engine=engine).analyze(text, language="en")
    for each in sorted(found, key=lambda each: each.start, reverse=True):
        text = f"{text[: each.start]}<{each.entity_type}>{text[each.end :]}"
    print(json.dumps({"entities": [[e.entity_type, e.start, e.end] for e in found], "text": text}))


if __name__ == "__main__":
    main(*sys.argv[1:])
