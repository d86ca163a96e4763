"""Does the API page name every function that a room exports, each with what its docstring says?"""

from __future__ import annotations

import importlib
import inspect

import pytest

from docs import build
from labkit.amp import ScalerConfig

PAGE = build.page()


@pytest.mark.parametrize("room", build.ROOMS)
def test_what_a_room_exports_stands_on_the_page_with_its_docstring(room: str) -> None:
    module = importlib.import_module(f"labkit.{room}")
    section = PAGE.split(f"## labkit.{room}\n")[1].split("\n## labkit.")[0]
    exported = {name: getattr(module, name) for name in getattr(module, "__all__", ("round_tensor",))}
    called = {name: value for name, value in exported.items() if inspect.isfunction(value) or inspect.isclass(value)}
    assert called
    for name, value in called.items():
        assert f"### {name}\n" in section
        assert (inspect.getdoc(value) or "?").splitlines()[0] in section


def test_worked_example_of_a_signature_long_and_short() -> None:
    assert "def advance(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:\n" in PAGE
    assert "def must_skip(state: ScalerState, found_inf: bool, config: ScalerConfig) -> bool:\n" in PAGE
    assert f"    init_scale: float = {ScalerConfig().init_scale!r},\n" in PAGE
    assert "    *,\n    enabled: bool = True,\n" in PAGE, "autocast takes its options by name"


def test_the_page_is_the_same_on_every_machine() -> None:
    assert " at 0x" not in PAGE
    assert "<labkit" not in PAGE


def test_a_page_that_was_written_is_up_to_date() -> None:
    if build.PAGE.exists():  # it need not be
        assert build.PAGE.read_text(encoding="utf-8") == PAGE, "`make docs` writes it anew"
