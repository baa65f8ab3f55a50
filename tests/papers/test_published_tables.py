"""The published numbers as data: complete, as printed, and of one mind where two tables print the same."""

from collections import Counter, defaultdict

import pytest

from tests.conftest import SHARED
from trueup.papers.mukhoti2020.grid import DATASETS, METHODS, MODELS
from trueup.papers.published import printed

SOURCE = SHARED / "sources" / "mukhoti2020.txt"
ENTRIES = printed("mukhoti2020")
SIZES = {
    "1": 80, "2": 80, "3": 60, "4": 60, "5": 60, "6": 24, "7": 140, "8": 140, "9": 70, "10": 100, "11": 100,
    "12": 100, "13": 100,
}  # fmt: skip


def number(table, dataset, model, method, quantity, state):
    wanted = (table, dataset, model, method, quantity, state)
    (found,) = [e for e in ENTRIES if (e.table, e.dataset, e.model, e.method, e.quantity, e.state) == wanted]
    return found.value, found.temperature


def test_every_table_is_whole():
    counts = Counter(entry.table for entry in ENTRIES)
    assert {table: counts[table] for table in SIZES} == SIZES
    assert set(counts) == {*SIZES, "NeurIPS"}


def test_what_no_text_of_the_paper_confirms_is_tagged():
    for entry in ENTRIES:
        assert (entry.tag == "paper") == (entry.table != "NeurIPS")
        assert entry.tag in ("paper", "code", "2nd", "recall")
        assert entry.number >= 0


@pytest.mark.skipif(not SOURCE.is_file(), reason="the paper's text is not here (TRUEUP_DATA)")
def test_the_rows_stand_in_the_text():
    lines = SOURCE.read_text(encoding="utf-8").split("\n")
    text = "\n".join(line.replace(" ", "\t") if "ResNet 110 Wide ResNet" in line else line for line in lines)
    rows = defaultdict(list)
    for entry in ENTRIES:
        if entry.tag == "paper" and not entry.note.startswith("two rows"):
            cell = f"{entry.value}({entry.temperature})" if entry.temperature else entry.value
            rows[entry.table, entry.dataset, entry.model].append(cell)
    assert len(rows) == 12 * 10 - 2 + 2
    for key, cells in rows.items():
        assert "\t".join(cells) in text, key


def test_two_tables_that_print_one_number_agree():
    """Tables 1 and 4 are parts of 7, 2 and 5 of 8, and the focal columns of 3 are part of 9."""
    again = {"1": "7", "4": "7", "2": "8", "5": "8", "3": "9"}
    checked = 0
    for entry in ENTRIES:
        if entry.table in again and entry.method.startswith("FL"):
            key = (entry.dataset, entry.model, entry.method, entry.quantity, entry.state)
            assert number(again[entry.table], *key) == (entry.value, entry.temperature), key
            checked += 1
    assert checked == 20 + 20 + 30 + 60 + 60


def test_the_authors_notebook_agrees():
    key = ("CIFAR-10", "ResNet 50", "CE")
    assert number("1", *key, "ece", "before")[0] == "4.35"
    assert number("1", *key, "ece", "after") == ("1.35", "2.50")
    assert [number(table, *key, "mce", state)[0] for table, state in (("12", "before"), ("13", "after"))] == [
        "38.65", "20.60",
    ]  # fmt: skip


def test_our_names_are_those_of_the_tables():
    assert set(METHODS.values()) == {entry.method for entry in ENTRIES}
    assert set(MODELS.values()) == {entry.model for entry in ENTRIES}
    assert set(DATASETS.values()) == {entry.dataset for entry in ENTRIES}
