"""The newcomer's path: one command with names of the hub, then requests with labels for a GLiNER and for an NLI model."""

from pathlib import Path

import pytest

from bert.tasks.spec import TaskSpec
from tests.support.families import write_relative
from tests.support.hub_process import hub_variables
from tests.support.live import Client
from tests.support.local_hub import local_hub
from tests.support.open_ner import write_gliner
from tests.support.process import address, started

NLI = TaskSpec("classification", ("contradiction", "neutral", "entailment"), pair=True)
TEXT = "Angela Merkel met engineers in Munich."


@pytest.mark.slow
def test_models_that_take_labels_are_served_by_name(tmp_path: Path) -> None:
    write_gliner(tmp_path / "tiny-gliner")
    write_relative(tmp_path / "tiny-nli", "distilbert", NLI)
    with local_hub() as hub:
        for name in ("tiny-gliner", "tiny-nli"):
            hub.add(f"org/{name}", tmp_path / name)
        variables = hub_variables(hub, tmp_path / "home", XDG_CACHE_HOME=str(tmp_path / "cache"))
        command = ("--model", "org/tiny-gliner,org/tiny-nli", "--model-precision", "fp32")
        with started(*command, **variables) as process:
            client = Client(address(process.until("Ready at")))
            models = client.get("/models").json["models"]
            assert {each["name"] for each in models if each["takes_labels"]} == {"tiny-gliner", "tiny-nli"}
            labels = ["person", "city"]
            asked = {"text": TEXT, "labels": labels, "threshold": 0.01}
            found = client.post("/ner", asked).json
            assert found["model"] == "tiny-gliner" and found["results"][0]["entities"]
            assert {each["label"] for each in found["results"][0]["entities"]} <= set(labels)
            assert client.post("/gliner", asked).json == found["results"][0]
            chosen = client.post("/classify", {"text": TEXT, "labels": ["politics", "sport"]}).json
            assert chosen["model"] == "tiny-nli"
            (result,) = chosen["results"]
            assert sum(each["score"] for each in result["scores"]) == pytest.approx(1, abs=1e-5)
