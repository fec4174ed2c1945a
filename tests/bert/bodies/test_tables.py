"""Each body has a row in every table, and CONTRIBUTING names every table."""

import re
from pathlib import Path

from bert.config import BertConfig
from bert.families import FAMILIES
from bert.nn.bodies import ENCODERS
from model_export.graph.bodies import GRAPH_BODIES
from model_export.reference import BODIES
from tests.support.families import CLASSES

ROOT = Path(__file__).parents[3]
PRODUCT = ("bert", "training", "model_export", "service")


def test_every_table_has_every_body() -> None:
    bodies = {family.body for family in FAMILIES.values()}
    assert ENCODERS.keys() == GRAPH_BODIES.keys() == BODIES.keys() == bodies


def test_the_steps_to_add_a_body_name_every_table() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Add a body\n")[1].split("\n## ")[0]
    named = set(re.findall(r"\| `(\S+\.py)` \|$", section, re.MULTILINE))
    files = [file for package in PRODUCT for file in (ROOT / package).rglob("*.py")]
    tables = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if "dict[type[Body]" in file.read_text(encoding="utf-8")
    }
    assert named == {*tables, "bert/families.py"}


def test_each_family_has_the_rows_that_the_steps_to_add_one_name() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = contributing.split("## Add a family\n")[1].split("\n## ")[0]
    for file in ("bert/families.py", "tests/support/families.py", "docs/export.md"):
        assert f"`{file}`" in section
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/export.md").read_text(encoding="utf-8"), re.MULTILINE)
    documented = set(re.findall(r"`([\w-]+)`", " ".join(rows)))
    written = {BertConfig.from_dict({"model_type": name}).model_type for name in FAMILIES}
    assert written - {"bert"} == CLASSES.keys()
    assert FAMILIES.keys() <= documented
