"""Names that left labkit.clinic are importable from it for one version, with a warning that names the new place."""

import pytest

from labkit import clinic, faults, grading, machine


def moved(name: str) -> object:
    place = r"labkit\.(faults|grading|machine)\.\w+"
    with pytest.warns(DeprecationWarning, match=rf"labkit\.clinic\.{name} is now {place}$"):
        return getattr(clinic, name)


def test_a_name_that_moved_works_as_before_and_warns() -> None:
    assert moved("check_machine") is machine.check_machine
    assert moved("Patient") is faults.Fault
    assert moved("explain") is faults.explain
    patient = moved("patients")()["mse_underflows"]
    assert moved("run")(patient, cured=True) == faults.run(patient, fixed=True)
    assert moved("snippet")(patient, cured=False) == faults.snippet(patient, fixed=False)
    assert moved("code_of")(patient.function, cured=False) == faults.snippet(patient, fixed=False)
    for name in clinic.MOVED:
        moved(name)
    for name in clinic.OF_LESSONS:
        assert moved(name) is getattr(grading, name)
    with pytest.raises(AttributeError, match="no attribute 'checkup'"):
        clinic.checkup  # noqa: B018
