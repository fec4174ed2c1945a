"""The encoder of a model's labels, where these have one of their own, in each precision."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bert.checkpoint.weights import Checkpoint
from bert.errors import ExportError
from bert.tasks.open_ner.inputs import label_input
from bert.tasks.open_ner.task import SAMPLE_LABELS
from model_export.progress import say
from model_export.reference import Floats
from model_export.verify.parity import Tolerance
from model_export.verify.precision import Exporter, LabelsFp32, LabelsInt8
from model_export.verify.texts import make_text
from model_export.verify.verified_graph import ExportContext, Judged, VerifiedGraph, compare

_EXPORTERS: dict[str, type[Exporter]] = {"fp32": LabelsFp32, "int8": LabelsInt8}


class LabelEncoder:
    """Graphs that make vectors of labels, each built and compared with the checkpoint when it is first asked for."""

    def __init__(self, checkpoint: Checkpoint, tolerance_of: Callable[[str], Tolerance]) -> None:
        """Build nothing yet. `tolerance_of` gives the tolerances of a precision."""
        self.checkpoint, self._tolerance_of = checkpoint, tolerance_of
        self._context = ExportContext(checkpoint)
        self._graphs = dict[str, VerifiedGraph]()
        self._vectors = dict[str, list[Floats]]()

    def graph(self, precision: str) -> VerifiedGraph:
        """Return the graph of a precision. Raises ExportError, or ParityError if it differs from the checkpoint."""
        if precision not in self._graphs:
            if precision not in _EXPORTERS:
                kind = "models whose labels have an encoder of their own"
                raise ExportError(
                    f"{precision} is not built for {kind}: export with --precision fp32 or int8"
                )
            say(f"the encoder of its labels, {precision}:")
            texts = self._context.calibration_texts if precision == "int8" else ()
            exported = _EXPORTERS[precision](self.checkpoint, texts)
            # The service runs each label by itself.
            tolerance = replace(self._tolerance_of(precision), neighbours=float("inf"))
            parity = compare(self._context, exported, tolerance)
            self._graphs[precision] = VerifiedGraph(exported, Judged(), parity, {})
        return self._graphs[precision]

    def vectors(self, precision: str) -> list[Floats]:
        """Return the vectors (C, D) of each of SAMPLE_LABELS. Raises as `graph`."""
        if precision not in self._vectors:
            tokenizer, spec = self.checkpoint.tokenizer, self.checkpoint.spec
            exported = self.graph(precision).exported
            self._vectors[precision] = []
            for labels in SAMPLE_LABELS:
                inputs = [label_input(each, tokenizer, spec.max_tokens) for each in tokenizer.pieces(labels)]
                found = exported.alone([make_text(each, spec.task) for each in inputs])
                self._vectors[precision].append(np.concatenate(found))
        return self._vectors[precision]
