"""Former names of widgets and of `labkit.export`, which warn until version 0.4."""

import pytest

from labkit import export, widgets
from labkit.site import formulas


def test_the_former_name_of_the_wall_of_faults_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"labkit\.widgets\.PatientWall is now .*FaultWall"):
        assert widgets.PatientWall is widgets.FaultWall


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("picture", formulas.picture),
        ("typeset", formulas.typeset),
    ],
)
def test_a_function_of_labkit_export_warns(name: str, moved: object) -> None:
    with pytest.warns(DeprecationWarning, match=rf"labkit\.export\.{name} is now labkit\.site"):
        assert getattr(export, name) is moved


@pytest.mark.parametrize("module", [export, widgets])
def test_an_unknown_name_is_an_attribute_error(module: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018
