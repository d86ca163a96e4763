"""The API page names every function that a package exports, with its docstring; and the page of error messages."""

from __future__ import annotations

import importlib
import inspect
import re

from docs import build, errors
from labkit.amp import ScalerConfig
from labkit.faults import cards

PAGE = build.page()


def section(module: str) -> str:
    return PAGE.split(f"## labkit.{module}\n")[1].split("\n## labkit.")[0]


def test_what_a_package_exports_stands_on_the_page_with_its_docstring() -> None:
    for room in build.ROOMS:
        module = importlib.import_module(f"labkit.{room}")
        exported = {name: getattr(module, name) for name in getattr(module, "__all__", ("round_tensor",))}
        assert exported
        for name, value in exported.items():
            assert f"### {name}\n" in section(room)
            if inspect.isfunction(value) or inspect.isclass(value):
                assert (inspect.getdoc(value) or "?").splitlines()[0] in section(room), name


def test_what_stands_on_the_page_can_be_imported_from_there() -> None:
    for module in build.MODULES:
        named = re.findall(r"^### (\w+)$", section(module), re.MULTILINE)
        assert named
        package = importlib.import_module(f"labkit.{module}")
        assert [name for name in named if not hasattr(package, name)] == [], module


def test_the_faces_have_the_calls_that_people_know() -> None:
    assert "def initialize(\n" in section("frameworks.apex.amp")
    assert "def scale_loss(\n" in section("frameworks.apex.amp")
    assert "class NonNativeMixedPrecision(\n" in section("frameworks.fastai.callback.fp16")
    assert "class Graph" in section("frameworks.oneflow.nn")
    assert "torch.nn" not in re.findall(r"^### (.*)$", section("frameworks.fastai.basics"), re.MULTILINE)


def test_worked_examples_of_tables_and_of_signatures_long_and_short() -> None:
    assert "### RECIPES\n\nA `dict` of `Recipe`: `FP32`, " in PAGE
    assert "### FP16\n\nA `Format`: `" in PAGE
    assert "def advance(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:\n" in PAGE
    assert f"    init_scale: float = {ScalerConfig().init_scale!r},\n" in PAGE
    assert "    *,\n    enabled: bool = True,\n" in PAGE, "autocast takes its options by name"


def test_the_pages_are_up_to_date_and_the_same_on_every_machine() -> None:
    assert " at 0x" not in PAGE
    assert "<labkit" not in PAGE
    if build.PAGE.exists():  # it need not be
        assert build.PAGE.read_text(encoding="utf-8") == PAGE, "`make docs` writes it anew"
    assert errors.PAGE.read_text(encoding="utf-8") == errors.page(), "`make docs` writes it anew"


def test_an_error_message_leads_to_what_it_means_and_to_its_repair() -> None:
    """A worked example: torch has had two names for one type, and people paste either."""
    text = errors.page()
    section = text.split('<a id="mask_constant"></a>')[1].split("<a id=")[0]
    for name in ("c10::Half", "at::Half"):
        assert f"- [`value cannot be converted to type {name} without overflow`](#mask_constant)" in text
        assert f"value cannot be converted to type {name}" in section
    assert cards()["mask_constant"].repair in section
    assert "[NVIDIA/apex#1052](https://github.com/NVIDIA/apex/issues/1052)" in section


def test_every_card_stands_on_the_page_of_error_messages_once() -> None:
    text = errors.page()
    assert all(text.count(f"`labkit explain {card.id}`") == 1 for card in cards().values())
    assert all(text.count(f"(#{card.id})") == len(card.errors) for card in cards().values())
