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


def test_worked_example() -> None:
    source = "def f(x):\n    y = 2.0\n    return x < y\n\ncheck(f)"
    assert {name: changed.split("\n", 1)[1] for name, changed in in_code(source)} == {
        "drop statement 0": "    pass\n    return x < y",
        "one more: 2.0": "    y = 3.0\n    return x < y",
        "an ulp more: 2.0": "    y = 2.0000000000000004\n    return x < y",
        "an ulp less: 2.0": "    y = 1.9999999999999998\n    return x < y",
        "compare 0 LtE: x < y": "    y = 2.0\n    return x <= y",
        "compare 0 Gt: x < y": "    y = 2.0\n    return x > y",
    }


def test_every_fault_is_refused_or_explained() -> None:
    paper = grading_cases(ULP, 1)
    count, equal = judged(paper)
    assert count > 40
    assert unexplained(ULP, equal) == []
    assert equal, "what is equal is found, not skipped"
    weak = replace(paper, checks=paper.checks[:1], cases=paper.cases[:1])
    assert unexplained(ULP, judged(weak)[1]) != []


def test_every_reason_is_of_a_fault_that_is_planted() -> None:
    around_one = [name for name, _ in around(reference("numbers.ulp"), (False,))]
    for id, reasons in EQUAL.items():
        own = program_of(cells_of(EXERCISES[id].lesson), EXERCISES[id])[-1]
        names = [*around_one, *(name for name, _ in in_code(own))]
        left_over = [
            why
            for why in reasons
            if not any(name == why or name.startswith(f"{why}: ") for name in names)
        ]
        assert left_over == [], id


# ---- faults of labkit

FAULTS = faults()


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_can_be_planted_and_its_tests_exist(fault: Fault) -> None:
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    planted = fault.planted(source)
    if fault.file.endswith(".py"):
        assert ast.dump(ast.parse(planted)) != ast.dump(tree(fault.file)), "a comment is no fault"
    else:
        assert planted != source
    for test in fault.tests:
        file, _, function = test.partition("::")
        there = {node.name for node in tree(file).body if isinstance(node, ast.FunctionDef)}
        assert function.partition("[")[0] in there


def test_names_differ_and_a_missing_or_repeated_text_is_refused() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len(FAULTS) >= 25
    fault = Fault("", "a.py", was="x", becomes="y", tests=())
    for source, times in (("z", 0), ("x x", 2)):
        with pytest.raises(ValueError, match=f"occurs {times} times in a.py: 'x'"):
            fault.planted(source)
    assert fault.planted("a x") == "a y"
