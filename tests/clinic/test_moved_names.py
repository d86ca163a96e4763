"""Names that left labkit.clinic are importable from it for one version, with a warning that names the new place."""

import pytest

from labkit import clinic, faults, machine


def test_a_name_that_moved_works_as_before_and_warns() -> None:
    moved, place = {}, r"labkit\.(faults|machine)\.\w+"
    for name in clinic.MOVED:
        with pytest.warns(DeprecationWarning, match=rf"labkit\.clinic\.{name} is now {place}$"):
            moved[name] = getattr(clinic, name)
    assert moved["check_machine"] is machine.check_machine
    assert (moved["Patient"], moved["explain"]) == (faults.Fault, faults.explain)
    assert (moved["patients"](), moved["gpu_cards"]()) == (faults.FAULTS, faults.GPU_CARDS)
    patient = moved["patients"]()["mse_underflows"]
    assert moved["run"](patient, cured=True) == faults.run(patient, fixed=True)
    assert moved["snippet"](patient, cured=False) == faults.snippet(patient, fixed=False)
    assert moved["code_of"](patient.function, cured=False) == faults.snippet(patient, fixed=False)
    with pytest.raises(AttributeError, match="no attribute 'checkup'"):
        clinic.checkup  # noqa: B018
