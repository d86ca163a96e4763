"""The fields of each widget's typedef in JavaScript are the traits of its class in Python."""

from __future__ import annotations

import re

import pytest

from labkit import widgets
from labkit.widgets.base.joining import FOLDERS
from labkit.widgets.base.widget import LabWidget

# Traits of every widget, of ipywidgets or of anywidget, which no view reads but the root's
# (`SharedTraits`).
SHARED = set(LabWidget.class_trait_names(sync=True))
IMPORTED = re.compile(r'@typedef \{import\("(?P<path>[^"]+)"\)\.(?P<name>\w+)\} Traits')
PROPERTY = re.compile(r"@property \{.*?\} (?P<name>\[?\w+\]?)(?= |\n|$)", re.DOTALL)
# Two classes that share a view.
NAMES = {"ScalerTimeline": "TimelineTraits", "ScalerPresets": "PresetTraits"}
CLASSES = {
    kind.__name__: kind
    for kind in (getattr(widgets, name) for name in widgets.__all__)
    if isinstance(kind, type) and issubclass(kind, LabWidget) and kind.script_folder
}


def typedef(folder: str, name: str = "Traits", path: str = "view.js") -> set[str]:
    """Return the fields of a typedef; those in brackets are the page's own."""
    text = (FOLDERS / folder / path).read_text(encoding="utf-8")
    imported = IMPORTED.search(text)
    if imported is not None and name == "Traits":
        source = (FOLDERS / folder / imported["path"]).resolve()
        return typedef(source.parent.name, imported["name"], source.name)
    for comment in re.findall(r"/\*\*.*?\*/", text, re.DOTALL):
        if re.search(rf"@typedef \{{object\}} {name}\b", comment):
            return {found["name"] for found in PROPERTY.finditer(comment)}
    raise AssertionError(f"labkit/widgets/{folder}/{path}: expected a typedef {name}, found none")


@pytest.mark.parametrize("name", CLASSES)
def test_the_fields_of_a_typedef_are_the_traits_of_its_class(name: str) -> None:
    kind = CLASSES[name]
    fields = {
        field
        for field in typedef(kind.script_folder, NAMES.get(name, "Traits"))
        if not field.startswith("[")
    }
    traits = set(kind.class_trait_names(sync=True)) - SHARED
    assert fields == traits


def test_the_shared_fields_are_the_traits_of_every_widget() -> None:
    own = {name for name in SHARED if not name.startswith("_")} - {"layout", "tabbable", "tooltip"}
    assert typedef("base", "SharedTraits", "model.js") == own
