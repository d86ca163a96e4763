"""Names that left labkit.clinic are importable from it for one version, with a warning that names the new place."""

import importlib

import pytest

from labkit import clinic


def test_a_name_that_moved_is_the_same_object_and_warns() -> None:
    for name, package in clinic.MOVED.items():
        with pytest.warns(DeprecationWarning, match=f"import {name} from {package}, not from labkit.clinic"):
            moved = getattr(clinic, name)
        assert moved is getattr(importlib.import_module(package), name), name
    with pytest.raises(AttributeError, match="no attribute 'checkup'"):
        clinic.checkup  # noqa: B018
