"""The faults that `make mutants` plants: their places exist, and their reasons hold.

Those of labkit can still be planted, and the tests that notice them exist.
"""

import ast
from dataclasses import replace
from functools import cache

import pytest

from labkit.grading import EXERCISES
from labkit.grading.judge import grading_cases
from labkit.grading.program import program_of
from tests.grading.cases import cells_of, reference
from tests.mutants.answers import EQUAL, judged, unexplained
from tests.mutants.planted import around, in_code
from tests.mutants.run import ROOT, Fault, faults

ULP = EXERCISES["numbers.ulp"]


def test_worked_example_all_faults_of_a_program() -> None:
    source = "def f(x):\n    y = 2.0\n    return x < y\n\ncheck(f)"
    assert {name: changed.split("\n", 1)[1] for name, changed in in_code(source)} == {
        "drop statement 0": "    pass\n    return x < y",
        "one more: 2.0": "    y = 3.0\n    return x < y",
        "an ulp more: 2.0": "    y = 2.0000000000000004\n    return x < y",
        "an ulp less: 2.0": "    y = 1.9999999999999998\n    return x < y",
        "compare 0 LtE: x < y": "    y = 2.0\n    return x <= y",
        "compare 0 Gt: x < y": "    y = 2.0\n    return x > y",
    }


OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "@"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_has_a_fault(operator: str) -> None:
    names = [name for name, _ in in_code(f"def f(a, b):\n    return a {operator} b")]
    assert [name for name in names if name.startswith("compute ")] != []


def test_every_fault_is_refused_or_explained() -> None:
    count, equal = judged(grading_cases(ULP, 1))
    assert count > 40
    # Some faults change no answer, and each of these has a reason.
    assert equal
    assert unexplained(ULP, equal) == []


def test_a_weak_check_leaves_faults_unexplained() -> None:
    case_set = grading_cases(ULP, 1)
    weak = replace(case_set, checks=case_set.checks[:1], cases=case_set.cases[:1])
    _, equal = judged(weak)
    assert unexplained(ULP, equal) != []


@pytest.mark.parametrize("id", EQUAL)
def test_every_reason_is_of_a_fault_that_is_planted(id: str) -> None:
    """A reason is for the whole name of a fault, or for its beginning before a colon."""
    *_, program = program_of(cells_of(EXERCISES[id].lesson), EXERCISES[id])
    names = [name for name, _ in around(reference("numbers.ulp"), (False,))]
    names += [name for name, _ in in_code(program)]
    beginnings = {name.partition(": ")[0] for name in names}
    assert EQUAL[id].keys() - beginnings - set(names) == set()


# ---- faults of labkit

FAULTS = faults()


@cache
def tree(file: str) -> ast.Module:
    """Return the syntax tree of a file of the checkout."""
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


@each_fault
def test_a_fault_can_be_planted(fault: Fault) -> None:
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    planted = fault.planted(source)
    if fault.file.endswith(".py"):
        # A change of a comment would leave the syntax tree as it is.
        assert ast.dump(ast.parse(planted)) != ast.dump(tree(fault.file))
    else:
        assert planted != source


@each_fault
def test_the_tests_of_a_fault_exist(fault: Fault) -> None:
    # Without a test, pytest would run all of them.
    assert fault.tests
    for test in fault.tests:
        file, _, function = test.partition("::")
        functions = {node.name for node in tree(file).body if isinstance(node, ast.FunctionDef)}
        assert function.partition("[")[0] in functions


def test_names_of_faults_differ() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_there_are_25_faults_or_more() -> None:
    assert len(FAULTS) >= 25


FAULT = Fault("", "a.py", was="x", becomes="y", tests=())


@pytest.mark.parametrize(("source", "times"), [("z", 0), ("x x", 2)])
def test_a_text_that_does_not_occur_once_is_refused(source: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"occurs {times} times in a.py: 'x'"):
        FAULT.planted(source)


def test_a_text_that_occurs_once_is_replaced() -> None:
    assert FAULT.planted("a x") == "a y"
