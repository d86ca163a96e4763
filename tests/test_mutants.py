"""The deliberate faults of `make mutants` do not rot: each can still be planted, and the tests that notice it exist."""

import ast
from functools import cache

import pytest

from tests.mutants.run import ROOT, Fault, faults

FAULTS = faults()


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(FAULTS) >= 25
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_can_be_planted_and_its_tests_exist(fault: Fault) -> None:
    planted = fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
    assert ast.dump(ast.parse(planted)) != ast.dump(tree(fault.file)), "a comment is no fault"
    for test in fault.tests:
        file, _, function = test.partition("::")
        there = {node.name for node in tree(file).body if isinstance(node, ast.FunctionDef)}
        assert function.partition("[")[0] in there


def test_a_missing_or_repeated_text_is_refused() -> None:
    fault = Fault("", "a.py", was="x", becomes="y", tests=())
    for source, times in (("z", 0), ("x x", 2)):
        with pytest.raises(ValueError, match=f"occurs {times} times in a.py: 'x'"):
            fault.planted(source)
    assert fault.planted("a x") == "a y"
