"""The faults of answers that `make mutants` plants: one exercise, and no reason in equal.toml is left over."""

from dataclasses import replace

from labkit.grading import EXERCISES
from labkit.grading.judge import grading_cases
from labkit.grading.program import program_of
from tests.grading.cases import cells_of, reference
from tests.mutants.answers import EQUAL, judged, unexplained
from tests.mutants.planted import around, in_code

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


def test_every_fault_is_refused_or_not_met_or_explained_and_without_a_check_some_are_not() -> None:
    paper = grading_cases(ULP, 1)
    count, equal = judged(paper)
    assert count > 40
    assert unexplained(ULP, equal) == []
    assert set(equal) - {"in: the sign ignored"}, "what is equal is found, not skipped"
    weak = replace(paper, checks=paper.checks[:1], cases=paper.cases[:1])
    assert unexplained(ULP, judged(weak)[1]) != []


def test_every_reason_is_of_a_fault_that_is_planted() -> None:
    around_one = [name for name, _ in around(reference("numbers.ulp"), (False,))]
    for id, reasons in EQUAL.items():
        own = program_of(cells_of(EXERCISES[id].lesson), EXERCISES[id])[-1]
        names = [*around_one, *(name for name, _ in in_code(own))]
        left_over = [why for why in reasons if not any(name == why or name.startswith(f"{why}: ") for name in names)]
        assert left_over == [], id
