"""Each kind of edit on two small paragraphs of one article, and what an edited question may never be."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from bert.data.examples import QaExample
from bert.data.squad import read_squad
from training.data.antonyms import ANTONYMS
from training.data.edited_questions import edit_unanswerable

CURIE = (
    "In 1903 Marie Curie shared a large prize with Pierre Curie, worth 70,000 francs. The laboratory was in Paris. "
    "She was born in Warsaw in 1867, as Maria's letters tell."
)
LIND = "The sculptor Anna Lind carved in 1921. She lived in Oslo and sold 15 figures."
SEEDS = range(60)
ROOT = Path(__file__).parents[3]


def asked(question: str, context: str = CURIE, id: str = "q", title: str = "People") -> QaExample:
    answer = context.split()[1]
    return QaExample(id, question, context, ((answer, context.find(answer)),), title)


OTHER = QaExample("other", "?", LIND, (), "People")


def edits_of(question: str, *others: QaExample) -> set[str]:
    """Every question that some seed makes of one."""
    examples = [asked(question), OTHER, *others]
    made = [example for seed in SEEDS for example in edit_unanswerable(examples, 1, seed)]
    return {example.question for example in made if example.id == "q-edited"}


def test_a_name_gives_way_to_another_one_of_the_paragraph_or_the_article() -> None:
    assert edits_of("Who met Marie Curie?") == {
        f"Who met {name}?" for name in ("Paris", "Warsaw", "Maria", "Anna Lind", "Oslo")
    }


def test_what_belongs_to_a_name_is_kept_and_not_carried_along() -> None:
    names = ("Marie Curie", "Pierre Curie", "Paris", "Maria", "Anna Lind", "Oslo")
    assert edits_of("Who walked Warsaw's streets?") == {f"Who walked {name}'s streets?" for name in names}


def test_an_accent_makes_no_other_name() -> None:
    song = "A song by Beyoncé and by Jay was heard."
    examples = [asked("Who met Beyonce?", song)]
    assert {made.question for seed in SEEDS for made in edit_unanswerable(examples, 1, seed)} == {
        "Who met Jay?"
    }


def test_a_year_gives_way_to_one_of_the_paragraph_or_near_by() -> None:
    years = {
        int(edited.removeprefix("What came in ").rstrip("?")) for edited in edits_of("What came in 1903?")
    }
    assert 1867 in years
    assert all(0 < abs(year - 1903) < 30 for year in years - {1867})
    assert 1921 not in {year for year in years if abs(year - 1903) >= 30}


def test_a_comma_after_a_number_is_no_part_of_it() -> None:
    assert all(edited.endswith(", who came?") for edited in edits_of("In 1903, who came?"))


def test_another_number_gives_way_to_one_of_the_paragraph_or_a_few_times_as_many() -> None:
    assert edits_of("Who paid 12 francs?") == {f"Who paid {n} francs?" for n in ("70,000", "24", "36", "48")}


def test_a_word_gives_way_to_its_opposite() -> None:
    assert edits_of("Who came first?") == {f"Who came {word}?" for word in ANTONYMS["first"]}
    assert edits_of("Largest of them?") == {"Smallest of them?"}


@pytest.mark.parametrize("question", ["How old?", "how  long?", "How many?"])
def test_how_old_asks_for_a_number_as_how_young_does(question: str) -> None:
    assert edits_of(question) == set()
    assert edits_of("Show old?") == {"Show new?", "Show young?"}


def test_a_word_of_two_meanings_has_the_opposites_of_both() -> None:
    assert {"joined", "right"} <= set(ANTONYMS["left"])
    assert all(word not in opposites and opposites for word, opposites in ANTONYMS.items())
    assert all(word.isalpha() and word.islower() for words in ANTONYMS.values() for word in words)


def test_a_verb_is_negated_once() -> None:
    assert edits_of("Where is it?") == {"Where isn't it?", "Where is not it?", "Where is never it?"}
    assert edits_of("Where is not it?") == set()


def test_a_word_gives_way_to_one_that_the_paragraph_does_not_have() -> None:
    assert edits_of("Who shared?") == {"Who carved?", "Who lived?"}


def test_no_edit_equals_a_question_that_is_asked_of_the_paragraph() -> None:
    also = asked("who came last?!", id="also"), QaExample("none", "Who came second", CURIE, (), "People")
    assert edits_of("Who came first?", *also) == {"Who came final?"}
    elsewhere = QaExample("far", "Who came last?", LIND, (), "People")
    assert "Who came last?" in edits_of("Who came first?", elsewhere)


def test_two_questions_do_not_become_one() -> None:
    examples = [asked("Who came first?", id="a"), asked("Who came earliest?", id="b")]
    examples += [asked("Who came oldest?", id="c"), asked("Who came longest?", id="d"), OTHER]
    for seed in SEEDS:
        made = [example.question for example in edit_unanswerable(examples, 1, seed)]
        assert len(set(made)) == len(made)


MANY = [asked(f"Who came first in {1900 + n}?", id=f"q{n}") for n in range(20)]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 5), (0.5, 10), (1.0, 20)])
def test_so_many_are_made_as_are_asked_for(share: float, count: int) -> None:
    made = edit_unanswerable([*MANY, OTHER], share, seed=3)
    assert len({example.id for example in made}) == len(made) == count
    of = {example.id: example for example in MANY}
    for example in made:
        source = of[example.id.removesuffix("-edited")]
        assert (example.context, example.title, example.answers) == (source.context, source.title, ())
        assert example.question != source.question


def test_unanswerable_questions_are_not_edited() -> None:
    assert edit_unanswerable([QaExample("n", "Who came first?", CURIE, (), "People")], 1, seed=0) == []
    assert edit_unanswerable([], 1, seed=0) == []


def test_fewer_than_asked_for_are_said(caplog: pytest.LogCaptureFixture) -> None:
    chinese = QaExample("zh", "居里夫人生于哪里?", "居里夫人1867年生于华沙。", (("华沙", 10),), "居里")
    with caplog.at_level(logging.WARNING):
        assert edit_unanswerable([chinese], 1, seed=0) == []
    assert "0 of 1 unanswerable questions could be made by editing" in caplog.text


def test_a_paragraph_of_two_articles_and_one_without_a_title_are_read() -> None:
    examples = [asked("Who came first?"), asked("Who met Marie Curie?", id="b", title="Again")]
    examples.append(asked("Who came oldest?", id="c", title=""))
    made = {example.id: example.title for seed in SEEDS for example in edit_unanswerable(examples, 1, seed)}
    assert made == {"q-edited": "People", "b-edited": "Again", "c-edited": ""}


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_that_cannot_be_made_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=rf"\({share}\) must be between 0 and 1"):
        edit_unanswerable(MANY, share, seed=0)


def test_the_seed_decides() -> None:
    first = edit_unanswerable([*MANY, OTHER], 0.5, seed=1)
    assert edit_unanswerable([*MANY, OTHER], 0.5, seed=1) == first
    assert edit_unanswerable([*MANY, OTHER], 0.5, seed=2) != first


def test_the_hash_seed_of_python_decides_nothing() -> None:
    """Sets of texts have another order in each process: none may be drawn from."""
    program = (
        "from tests.training.data.test_edited_questions import *\n"
        "print([e.question for e in edit_unanswerable([*MANY, OTHER], 1, 5)])"
    )
    runs = (
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT, capture_output=True, text=True, check=True,
        )
        for seed in "12"
    )  # fmt: skip
    first, second = (run.stdout for run in runs)
    assert first == second and "Who came" in first


def test_real_questions_are_edited_by_every_kind(shared_data: Path) -> None:
    examples = read_squad(shared_data / "squad" / "train-v1.1-12-articles.json")
    made = edit_unanswerable(examples, 0.5, seed=0)
    assert len(made) == round(len(examples) / 2)
    questions = {(example.context, example.question) for example in examples}
    assert not questions & {(example.context, example.question) for example in made}
    source = {example.id: example.question for example in examples}
    changed = [set(e.question.split()) - set(source[e.id.removesuffix("-edited")].split()) for e in made]
    with_digits = sum(any(word[0].isdigit() for word in words) for words in changed)
    negated = sum(any(word in ("not", "never") or "n't" in word for word in words) for words in changed)
    assert with_digits > 50 and negated > 50
