"""Temporary replacements of functions of other libraries."""

from typing import Any

import pytest

from labkit.modes.replacing import Replacement, Replacements


class Library:
    """Owner of the functions that are replaced."""

    first = staticmethod(lambda: "first")
    second = staticmethod(lambda: "second")


def replaced(_: Any) -> Any:
    return staticmethod(lambda: "replaced")


def refuse(_: Any) -> Any:
    raise RuntimeError("no replacement")


def test_the_last_user_restores_the_originals() -> None:
    replacements = Replacements(Replacement(Library, "first", replaced))
    replacements.open()
    replacements.open()
    replacements.close()
    assert Library.first() == "replaced"
    replacements.close()
    assert Library.first() == "first"


def test_a_replacement_that_fails_leaves_none_in_place() -> None:
    replacements = Replacements(
        Replacement(Library, "first", replaced), Replacement(Library, "second", refuse)
    )
    with pytest.raises(RuntimeError, match="no replacement"):
        replacements.open()
    assert Library.first() == "first"
    assert not replacements.is_open


def test_a_replacement_by_another_library_is_kept() -> None:
    class Patched(Library):
        pass

    replacements = Replacements(Replacement(Patched, "first", replaced))
    replacements.open()
    Patched.first = staticmethod(lambda: "of another library")
    replacements.close()
    assert Patched.first() == "of another library"


def test_an_inherited_function_is_inherited_again() -> None:
    class Derived(Library):
        pass

    replacements = Replacements(Replacement(Derived, "first", replaced))
    replacements.open()
    replacements.close()
    assert "first" not in vars(Derived)
