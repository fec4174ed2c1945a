"""One graph of a checkpoint: built, compared with the checkpoint, scored. Nothing is written here."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bert.checkpoint.weights import Checkpoint, release_pages
from bert.data.examples import LabelledFile
from bert.errors import BertError
from bert.tasks.registry import TASKS
from bert.tasks.task import Compared
from model_export.progress import say, step
from model_export.reference import Floats, Reference
from model_export.verify.agreement import Changes, can_show, entity_changes, label_changes
from model_export.verify.costs import Costs
from model_export.verify.dev_score import DevSet, is_scored, read_dev, recorded_files
from model_export.verify.parity import Tolerance, check_parity, check_score
from model_export.verify.precision import EXPORTERS, Exporter
from model_export.verify.request_labels import changes_of, labelled_texts
from model_export.verify.texts import CALIBRATING, EncodedText, few_of, sentences, shipped_texts

LOOKS = (0.3, 0.45, 0.6, 0.8, 1.0)
"""Shares of the judged texts after which the changed labels are counted."""
MIN_RECORDED_DEV, MAX_RECORDED_DEV = 200, 2000
"""Texts of a dev file that nobody asked for. With fewer than 200, one text is more than the half point that may be lost."""
_COUNTED = (Compared.LABELS, Compared.ENTITIES)
"""Kinds of outputs whose changes are counted part by part, until the parts show enough."""


class ExportContext:
    """A checkpoint and what its graphs are compared on; what takes time is worked out once, when it is asked for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dev: LabelledFile | Path | None = None,
        dev_limit: int | None = None,
        *,
        few_texts: bool = False,
        folder: Path | None = None,
        vectors_of: Callable[[str], list[Floats]] | None = None,
    ) -> None:
        """`dev` is labelled data, of which at most `dev_limit` examples are read; `few_texts` compares on few.

        Graphs are written to `folder`, by default to one of their own each. `vectors_of` gives those of SAMPLE_LABELS in a
        precision, where labels have an encoder of their own.
        """
        self.folder, self._vectors_of = folder, vectors_of
        self.checkpoint, self._dev, self._dev_limit = checkpoint, dev, dev_limit
        self.dev_file = dev.path if isinstance(dev, LabelledFile) else dev
        texts = self._labelled(shipped_texts(checkpoint.tokenizer, checkpoint.spec))
        self.texts = few_of(texts, checkpoint.spec.task) if few_texts else texts
        self.costs = Costs(checkpoint)
        self.on_texts: dict[str, list[Floats]] = {}
        """Precision → outputs of its graph for the shipped texts, packed."""
        self._on_judged: dict[int, list[Floats]] = {}

    def _labelled(self, texts: list[EncodedText]) -> list[EncodedText]:
        """Give texts the float32 vectors of their labels, where these have an encoder of their own."""
        sets = {} if self._vectors_of is None else {len(each): each for each in self._vectors_of("fp32")}
        for text in texts:
            if (made_up := text.encoding.label_vectors) is not None and sets:
                text.encoding.label_vectors = sets[len(made_up)]
        return texts

    def vectors_in(self, precision: str) -> dict[int, Floats]:
        """Return what a graph reads in place of the texts' vectors of labels, by their ids. Raises ExportError."""
        if self._vectors_of is None:
            return {}
        pairs = zip(self._vectors_of("fp32"), self._vectors_of(precision), strict=True)
        return {id(float32): own for float32, own in pairs}

    def take_recorded_dev(self) -> None:
        """Score on the first recorded dev file that is at hand, can be read and has enough texts, where none was given."""
        if self.dev_file is not None or not is_scored(self.checkpoint.spec):
            return
        spec, limit = self.checkpoint.spec, self._dev_limit or MAX_RECORDED_DEV
        try:
            recorded = recorded_files(spec, "dev")
        except BertError as error:
            say(f"  not scored on the dev file of task.json: {error}")
            return
        here = [file for file in recorded if file.path.is_file()]
        if recorded and not here:
            names = ", ".join(str(file.path) for file in recorded)
            say(f"  dev file of task.json is not here: {names}; --dev FILE scores on one")
        for file in here:
            try:
                dev = read_dev(file, spec, self.checkpoint.tokenizer, limit)
            except BertError as error:
                say(f"  not scored on the dev file of task.json: {error}")
                continue
            if len(dev.texts) >= MIN_RECORDED_DEV:
                self.dev, self.dev_file = dev, file.path
                return
            say(
                f"  {file.path} has {len(dev.texts)} texts, too few to decide; --dev scores on it all the same"
            )

    def costs_of(self, precisions: Sequence[str]) -> float:
        """Return how many seconds it should take to build, prove and write the graphs."""
        costs, spec = self.costs, self.checkpoint.spec
        parts = self.judged_texts if "int8" in precisions else ()
        # How much labels need is not known; two looks are wrong by less than a fifth mostly.
        looks = {Compared.ANSWERS: len(LOOKS), Compared.LABELS: 2, Compared.ENTITIES: 2}
        judged = parts[: looks.get(TASKS[spec.task].compared(spec), 1)]
        seconds = sum(costs.running(("fp32", "int8"), part) for part in judged)
        seconds += costs.writing
        if "int8" in precisions:
            seconds += costs.running(("fp32", "int8"), self.texts_with_labels)
        for number, precision in enumerate(precisions):
            seconds += costs.building(precision) + costs.timing() * number
            seconds += costs.comparing(precision, self.texts, is_first=not number)
        return seconds + (costs.running({"fp32", *precisions}, self.dev.texts) if self.dev_file else 0)

    @cached_property
    def expected(self) -> list[Floats]:
        """Outputs of the checkpoint itself for the shipped texts."""
        c = self.checkpoint
        reference = Reference(c.config, c.spec, c.weights)
        return reference.outputs_of([t.encoding for t in self.texts], [t.positions for t in self.texts])

    @cached_property
    def _sentences(self) -> list[EncodedText]:
        """The shipped sentences, the first tenth for calibration, the rest for judging 8 bits."""
        return self._labelled(sentences(self.checkpoint.tokenizer, self.checkpoint.spec))

    @property
    def _calibrating(self) -> int:
        """Number of sentences for calibration; what is judged together is not divided."""
        count = len(self._sentences) // CALIBRATING
        return count - count % TASKS[self.checkpoint.spec.task].judged_together

    @property
    def calibration_texts(self) -> list[EncodedText]:
        """Texts that an 8-bit graph is fitted to: every other shipped one, so that the rest is new to it, and sentences."""
        return [*self.texts[::2], *self._sentences[: self._calibrating]]

    @cached_property
    def judged_texts(self) -> list[list[EncodedText]]:
        """The texts on which a graph in 8 bits is compared with the float32 one, in the parts between LOOKS."""
        texts = [*self.texts, *self._sentences[self._calibrating :]]
        size = TASKS[self.checkpoint.spec.task].judged_together
        ends = [round(share * len(texts) / size) * size for share in LOOKS]
        return [texts[start:end] for start, end in itertools.pairwise([0, *ends])]

    @cached_property
    def texts_with_labels(self) -> list[EncodedText]:
        """The texts on which the labels of requests are judged, where the model takes any."""
        return labelled_texts(self.checkpoint.tokenizer, self.checkpoint.spec)

    def float32_on_judged(self, part: int) -> list[Floats]:
        """Outputs of the float32 graph for a part of `judged_texts`."""
        if part not in self._on_judged:
            self._on_judged[part] = self.on_judged(self.float32, part)
        return self._on_judged[part]

    def on_judged(self, exported: Exporter, part: int) -> list[Floats]:
        """Outputs of a graph for a part of `judged_texts`; the first may begin with those of `on_texts`."""
        texts, known = self.judged_texts[part], list[Floats]()
        if part == 0:
            known = self.on_texts.get(exported.precision, [])
        return [*known, *exported.packed(texts[len(known) :])]

    @cached_property
    def float32(self) -> Exporter:
        """The float32 graph."""
        return EXPORTERS["fp32"](self.checkpoint, (), self.folder)

    def close_float32(self) -> None:
        """Free the memory of the float32 graph, if there is one, until it runs again."""
        if "float32" in vars(self):
            self.float32.close()

    @cached_property
    def dev(self) -> DevSet:
        """The labelled data. Raises DataError or ExportError."""
        assert self._dev is not None
        return read_dev(self._dev, self.checkpoint.spec, self.checkpoint.tokenizer, self._dev_limit)

    @cached_property
    def float32_on_dev(self) -> list[Floats]:
        """Outputs of the float32 graph for the labelled data."""
        return self.float32.packed(self.dev.texts)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Texts that both graphs have read, packed with others, and the outputs of the float32 one and of the other."""

    texts: list[EncodedText] = field(default_factory=list)
    before: list[Floats] = field(default_factory=list)
    after: list[Floats] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedGraph:
    """A graph that may be written, with the proof that it may."""

    exported: Exporter
    judged: "Judged"
    """The judged texts; none except in 8 bits."""
    parity: dict[str, Any]
    dev_score: dict[str, Any]
    """Empty where no labelled data were given."""


def build(context: ExportContext, precision: str) -> Exporter:
    """Build a graph and look at its structure. Raises ExportError."""
    vectors = context.vectors_in(precision)
    with step(f"building the {precision} graph", context.costs.building(precision)):
        checkpoint = context.checkpoint
        if precision == "fp32":
            exported = context.float32
        else:
            context.close_float32()  # the calibration takes as much memory again
            release_pages(checkpoint.weights)
            texts = context.calibration_texts if precision == "int8" else ()
            exported = EXPORTERS[precision](checkpoint, texts, context.folder)
            exported.label_vectors = vectors
        return exported


def prove(context: ExportContext, exported: Exporter, tolerance: Tolerance) -> VerifiedGraph:
    """Compare a graph with the checkpoint, and score it. Raises ParityError, DataError or ExportError."""
    parity = compare(context, exported, tolerance)
    scores = _score(context, exported, tolerance) if context.dev_file else {}
    judged = Judged()
    if exported.precision == "int8":
        judged, changes = _judge(context, exported, scores, tolerance)
        parity |= changes
    return VerifiedGraph(exported, judged, parity, scores)


def compare(context: ExportContext, exported: Exporter, tolerance: Tolerance) -> dict[str, Any]:
    """Compare a graph with the checkpoint on the shipped texts; return what was measured. Raises ParityError."""
    texts, is_first = context.texts, "expected" not in vars(context)
    seconds = context.costs.comparing(exported.precision, texts, is_first=is_first)
    with step(f"comparing {len(texts)} texts with the checkpoint", seconds):
        packed = context.on_texts[exported.precision] = exported.packed(texts)
        measured = check_parity(
            exported.precision,
            context.checkpoint.spec,
            context.expected,
            exported.alone(texts),
            packed,
            tolerance,
            exported.in_numpy(texts),
        )
    return {"check": exported.how, "on": "texts shipped with bert-export", **measured}


def _judge(
    context: ExportContext, exported: Exporter, scores: dict[str, Any], tolerance: Tolerance
) -> tuple[Judged, dict[str, Any]]:
    """Run the judged texts and count the labels or entities that are changed. Raises ParityError where too many are.

    The labelled data decide where there are enough of them, else the sentences. Of a whole vocabulary's pieces the best are
    often as good as one another: a swap is reported, not judged. Parts are run until they show enough.
    """
    spec, judged = context.checkpoint.spec, Judged()
    compared, allowed = TASKS[spec.task].compared(spec), tolerance.changed_share(spec.task)
    labelled = Changes("labels", scores.get("labels", 0), scores.get("changed_labels", 0))
    if has_labelled := can_show(labelled.count, allowed):
        labelled.check(allowed)
    for part, texts in enumerate(context.judged_texts):
        with step(f"comparing {len(texts)} texts with fp32", context.costs.running(("fp32", "int8"), texts)):
            judged.texts.extend(texts)
            judged.before.extend(context.float32_on_judged(part))
            judged.after.extend(context.on_judged(exported, part))
        outputs = judged.before, judged.after
        is_open = compared is Compared.ENTITIES
        changes = entity_changes(spec, judged.texts, *outputs) if is_open else label_changes(spec, *outputs)
        if compared in _COUNTED and not has_labelled:
            assert changes is not None
            if changes.are_surely_few(allowed):
                break
        elif compared is not Compared.ANSWERS:
            break
    else:
        if compared in _COUNTED and changes is not None:
            changes.check(allowed)
    found = {} if changes is None else changes.to_dict()
    if asked := context.texts_with_labels:
        with step(
            f"comparing {len(asked)} labels of requests with fp32",
            context.costs.running(("fp32", "int8"), asked),
        ):
            differing = changes_of(spec, context.float32.packed(asked), exported.packed(asked))
            differing.check(allowed)
            found["requests"] = differing.to_dict()
    return judged, found


def _score(context: ExportContext, exported: Exporter, tolerance: Tolerance) -> dict[str, Any]:
    assert context.dev_file is not None
    run = {exported.precision, *(() if "float32_on_dev" in vars(context) else ("fp32",))}
    with step(f"scoring on {context.dev_file}", context.costs.running(run, context.dev.texts)):
        before, spec = context.float32_on_dev, context.checkpoint.spec
        after = before if exported is context.float32 else exported.packed(context.dev.texts)
        scores = check_score(exported.precision, spec, context.dev, before, after, tolerance)
        return {"data": context.dev_file.name, **scores}
