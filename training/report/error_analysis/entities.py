"""Mistakes on entities."""

from collections import Counter
from collections.abc import Sequence

from bert.data.examples import WordsExample
from bert.metrics import bio_spans, entity_f1
from training.report.error_analysis.base import Findings, Mistake, excerpt, shown


def entity_findings(examples: Sequence[WordsExample], predictions: Sequence[Sequence[str]]) -> Findings:
    """BIO labels: scores of each type, kinds of mistake, and the sentences with most wrong entities."""
    types = entity_f1([e.labels for e in examples], predictions).types
    by_class = {
        name: {"precision": t.precision, "recall": t.recall, "f1": t.f1, "support": t.support}
        for name, t in types.items()
    }
    counts, wrong = Counter[str](), []
    for example, predicted in zip(examples, predictions, strict=True):
        gold, given = set(bio_spans(example.labels)), set(bio_spans(predicted))
        if gold == given:
            continue
        counts.update(_entity_mistakes(gold, given))
        mistake = Mistake(
            example.id, excerpt(" ".join(example.words)), _entities(example, gold), _entities(example, given)
        )
        wrong.append((len(gold ^ given), mistake))
    wrong.sort(key=lambda pair: -pair[0])
    worst = shown([mistake for _, mistake in wrong])
    predicted_types = {kind for labels in predictions for kind, _, _ in bio_spans(labels)}
    never = tuple(name for name, t in types.items() if t.support and name not in predicted_types)
    return Findings(len(examples), len(wrong), worst, by_class, dict(counts), never_predicted=never)


def _entity_mistakes(gold: set[tuple[str, int, int]], given: set[tuple[str, int, int]]) -> Counter[str]:
    """Count by kind; an entity that touches no other is missed or invented."""
    kinds = Counter[str]()
    for kind, first, last in given - gold:
        touched = [other for other in gold if other[1] < last and first < other[2]]
        if (first, last) in [(other[1], other[2]) for other in touched]:
            kinds["wrong type"] += 1
        elif any(other[0] == kind for other in touched):
            kinds["wrong ends"] += 1
        else:
            kinds["wrong type and ends" if touched else "invented"] += 1
    for _, first, last in gold - given:
        kinds["missed"] += not any(other[1] < last and first < other[2] for other in given)
    return kinds


def _entities(example: WordsExample, spans: set[tuple[str, int, int]]) -> str:
    ordered = sorted(spans, key=lambda span: span[1])
    return ", ".join(f"{kind}[{' '.join(example.words[a:b])}]" for kind, a, b in ordered) or "(none)"
