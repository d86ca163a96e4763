"""The project's prose is plain English, as far as a program can tell (`tests.prose`)."""

import pytest

from tests import prose
from tests.prose import EXCEPTIONS, QUESTION, WHOLE, Fault, faults, files, sentences

BROKEN = '''"""What is told to whom?"""
def told(x):
    """Return what is asked for.

    The caller is told of it, whoever that is.
    """
    raise ValueError(f"a recipe is expected; it was given {x}, for ever")
'''


def test_docstrings_messages_pages_and_lessons_are_plain_english() -> None:
    assert [str(fault) for file in files(list(WHOLE)) for fault in faults(file)] == []


def test_names_of_tests_are_plain_english(tmp_path) -> None:
    assert [
        str(fault)
        for file in files(["tests"])
        if file.suffix == ".py"
        for fault in prose.test_names(file)
    ] == []
    (tmp_path / "test_old.py").write_text("def test_an_error_is_told(): ...\n", encoding="utf-8")
    assert [fault.sentence for fault in prose.test_names(tmp_path / "test_old.py")] == [
        "test_an_error_is_told"
    ]


def test_exceptions_are_few_and_needed() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in files(list(WHOLE)))
    assert len(EXCEPTIONS) <= 20
    assert [sentence for sentence in EXCEPTIONS if sentence not in text] == []


def test_each_rule_is_noticed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.prose.ROOT", tmp_path)
    path, page = tmp_path / "broken.py", tmp_path / "page.md"
    path.write_text(BROKEN, encoding="utf-8")
    found: list[Fault] = list(faults(path))
    rules = {fault.rule for fault in found}
    assert {
        QUESTION,
        "a passive",
        "permanently, without end",
        "name the reader, the caller or the user",
    } <= rules
    assert any("got" in rule for rule in rules)
    assert any(fault.sentence == "told" for fault in found)
    for words, count in ((35, 0), (36, 1)):
        page.write_text("One, " + "more " * (words - 2) + "word.\n", encoding="utf-8")
        assert len(list(faults(page))) == count
    assert sentences("A scale:\n- one word\n- two words") == ["A scale", "one word", "two words"]
