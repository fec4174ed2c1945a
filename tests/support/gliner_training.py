"""The loss and gradients of `gliner` itself on given weights and texts, in the Python of an environment that has it.

    BERT_GLINER_PYTHON tests/support/gliner_training.py FOLDER < JSON

FOLDER has a model; the JSON has `examples` in GLiNER's format, each with the labels that it is asked for as `ner_labels`,
parameters of the `loss`, and `texts` and `labels`. Gradients go to FOLDER/gradients.safetensors, the loss and the
entities of each text to standard output.
"""

import json
import sys
from pathlib import Path

from gliner import GLiNER
from safetensors.torch import save_file


def main() -> None:
    """Answer one question."""
    folder, asked = Path(sys.argv[1]), json.load(sys.stdin)
    model = GLiNER.from_pretrained(str(folder))
    batch = model._create_data_collator()(asked["examples"])
    model.eval()
    output = model.model(**{**batch, **asked["loss"], "reduction": "sum"})
    output.loss.backward()
    gradients = {name: p.grad for name, p in model.model.named_parameters() if p.grad is not None}
    save_file(
        {name: tensor.contiguous() for name, tensor in gradients.items()}, folder / "gradients.safetensors"
    )
    entities = model.batch_predict_entities(asked["texts"], asked["labels"], threshold=asked["threshold"])
    found = [[[e["start"], e["end"], e["label"], e["score"]] for e in each] for each in entities]
    json.dump({"loss": output.loss.item(), "entities": found}, sys.stdout)


main()
