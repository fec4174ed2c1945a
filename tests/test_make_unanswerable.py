import time
from dataclasses import replace
from pathlib import Path

import pytest

from bert.data.examples import QaExample
from bert.data.squad import read_squad
from scripts.make_unanswerable import cut_answers, main, make_unanswerable

QUESTIONS = Path(__file__).parents[1] / "examples/data/qa-train.json"
RIVERS = {
    "Rhine": "The Rhine rises in the Alps and flows through six countries.",
    "Danube": "The Danube rises in the Black Forest and flows through ten countries.",
    "Seine": "The Seine flows through Paris.",
    "Volga": "No river of Europe is longer than the Volga.",
}
BREAD = "Bread is baked from flour, and countries rise and flow."


def examples(title: str = "Rivers") -> list[QaExample]:
    return [
        QaExample("q1", "Where does the Rhine rise and through how many countries does it flow?",
                  RIVERS["Rhine"], (("six", RIVERS["Rhine"].find("six")),), title),
        QaExample("q2", "What city does the Seine flow through?", RIVERS["Seine"], (("Paris", 24),), title),
        QaExample("q3", "Which river is longest?", RIVERS["Volga"], (("the Volga", 34),), title),
        QaExample("q4", "Who?", RIVERS["Danube"], (), title),
        QaExample("far", "What?", BREAD, (("flour", 20),), "Bread"),
    ]  # fmt: skip


def test_the_number_asked_for_is_made_and_none_has_answers() -> None:
    made = make_unanswerable(examples(), per_answerable=0.5, seed=0)
    assert len(made) == 2  # four answerable
    assert all(example.answers == () for example in made)


def test_more_than_one_a_question_takes_different_paragraphs() -> None:
    made = [e for e in make_unanswerable(examples(), per_answerable=2, seed=0) if e.id.startswith("q1")]
    assert [example.id for example in made] == ["q1-no-1", "q1-no-2"]
    assert len({example.context for example in made}) == 2


def test_the_paragraph_is_of_the_same_article_and_without_the_answer() -> None:
    contexts = {e.id: e.context for e in examples()}
    for seed in range(20):
        for made in make_unanswerable(examples(), per_answerable=1, seed=seed):
            source = made.id.removesuffix("-no-1")
            assert made.context != contexts[source]
            if source != "far":  # the only paragraph of its article: it has to go elsewhere
                assert made.title == "Rivers"
    assert not any(
        "paris" in e.context.lower()
        for seed in range(20)
        for e in make_unanswerable(examples(), per_answerable=1, seed=seed)
        if e.id.startswith("q2")
    )


def test_paragraphs_that_share_words_with_the_question_come_first() -> None:
    padding = [
        QaExample(f"p{n}", "Which one?", f"Something else entirely, number {n}.", ((str(n), 34),), "Rivers")
        for n in range(30)
    ]
    drawn = {
        e.context
        for seed in range(30)
        for e in make_unanswerable(examples() + padding, per_answerable=1, seed=seed)
        if e.id.startswith("q1")
    }
    assert drawn == {RIVERS["Danube"], RIVERS["Seine"], RIVERS["Volga"]}


def test_the_same_seed_makes_the_same_and_another_seed_others() -> None:
    assert make_unanswerable(examples(), 1, seed=1) == make_unanswerable(examples(), 1, seed=1)
    assert any(
        make_unanswerable(examples(), 1, seed=1) != make_unanswerable(examples(), 1, seed=s)
        for s in range(2, 9)
    )


def test_nothing_is_made_of_nothing() -> None:
    assert make_unanswerable([], 1.0, seed=0) == []
    assert make_unanswerable(examples(), 0.0, seed=0) == []
    assert make_unanswerable(examples()[1:2], 1.0, seed=0) == []  # there is no other paragraph


def test_chinese_paragraphs_are_compared_by_pairs_of_characters() -> None:
    near, far = "莱茵河流经六个国家。", "面包是用面粉做的。"
    paragraphs = [
        QaExample("q", "莱茵河流经哪些国家？", "它发源于阿尔卑斯山。", (("阿尔卑斯山", 4),), ""),
        *(QaExample(f"f{n}", "什么？", far + str(n), (), "") for n in range(60)),
        QaExample("n", "几个？", near, (), ""),
    ]
    drawn = [make_unanswerable(paragraphs, per_answerable=1, seed=seed)[0].context for seed in range(30)]
    assert drawn.count(near) >= 4  # one of the best three: 10 expected; by chance it would be 0.5


def test_reddit_with_one_title_for_all_is_fast_and_has_the_same_lengths(shared_data: Path) -> None:
    real = read_squad(shared_data / "squad" / "train-squadshifts-reddit.json")
    started = time.process_time()
    made = make_unanswerable(real, per_answerable=0.5, seed=0)
    assert time.process_time() - started < 60
    assert len(made) == pytest.approx(len(real) / 2, abs=10)  # an answer such as "I" stands everywhere
    lengths = [sum(len(e.context) for e in some) / len(some) for some in (real, made)]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.1)  # or the length would give the answer away


TOLD = QaExample(
    "q",
    "Who opened the bakery?",
    "The town lies on a river, and has a market every Saturday. Anna Schmidt opened the bakery. "
    "Her bread is known in all the villages around, and sold out by noon.",
    (("Anna Schmidt", 59), ("Schmidt", 64)),
    "Town",
)


def test_the_sentences_of_the_answer_are_cut_out() -> None:
    (cut,) = cut_answers([TOLD], 1.0, seed=0)
    assert (cut.id, cut.question, cut.answers, cut.title) == ("q-cut", TOLD.question, (), "Town")
    assert cut.context == TOLD.context.replace("Anna Schmidt opened the bakery. ", "")


def test_a_paragraph_of_which_little_is_left_is_not_cut() -> None:
    short = replace(
        TOLD, context="It rained. Anna Schmidt opened the bakery.", answers=(("Anna Schmidt", 11),)
    )
    assert cut_answers([short], 1.0, seed=0) == []


def test_a_share_of_the_answerable_questions_is_cut() -> None:
    many = [replace(TOLD, id=str(n)) for n in range(400)]
    assert 150 < len(cut_answers(many, 0.5, seed=1)) < 250
    assert cut_answers(many, 0.5, seed=1) == cut_answers(many, 0.5, seed=1)
    assert cut_answers([replace(TOLD, answers=())], 1.0, seed=1) == []


def test_the_command_writes_questions_that_are_read_back(tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    main([str(QUESTIONS), str(made), "--share", "0.5", "--cut", "0.5"])
    examples = read_squad(QUESTIONS)
    assert read_squad(made) == make_unanswerable(examples, 0.5, 42) + cut_answers(examples, 0.5, 42)


@pytest.mark.parametrize("arguments", [[], ["--share", "-1"], ["--cut", "2"]])
def test_the_command_refuses_what_makes_no_questions(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(QUESTIONS), str(tmp_path / "made.json"), *arguments])
    assert not (tmp_path / "made.json").exists()
