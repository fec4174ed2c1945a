"""The engine of a model whose labels have an encoder of their own: two graphs behind one interface."""

from collections.abc import Sequence

from bert.packing import CostModel
from bert.tasks.open_ner.inputs import is_label_input
from bert.tokenizer import Encoding
from service.engine.models import Engine, Outputs, PackingEngine


class LabelEngine:
    """Runs texts in one graph and labels, for their vectors (1, D), in another."""

    def __init__(self, texts: PackingEngine, labels: Engine) -> None:
        """Give each the engine of its graph."""
        self._texts, self._labels = texts, labels

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        """Run texts together and each label by itself: so its vector is the same, bit for bit, whatever is beside it."""
        are_labels = [is_label_input(encoding) for encoding in encodings]
        texts = [each for each, is_label in zip(encodings, are_labels, strict=True) if not is_label]
        found = self._texts.run(texts) if texts else Outputs([], 0.0)
        rest = iter(found.texts)
        outputs = [
            self._labels.run([each]).texts[0] if is_label else next(rest)
            for each, is_label in zip(encodings, are_labels, strict=True)
        ]
        return Outputs(outputs, found.padding_ratio)

    def set_cost(self, cost: CostModel) -> None:
        """Pack texts by this model from now on."""
        self._texts.set_cost(cost)
