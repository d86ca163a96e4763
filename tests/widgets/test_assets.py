"""What the browser gets: one text, complete, that loads nothing from elsewhere."""

import re
from importlib.resources import files

import pytest

from labkit.widgets.assets import script, style

STATIC = files("labkit.widgets") / "static"
WIDGETS = sorted(file.name.removesuffix(".js") for file in STATIC.iterdir() if file.name.endswith(".js"))
WIDGETS.remove("base")


@pytest.mark.parametrize("name", WIDGETS)
def test_a_module_is_the_base_then_its_own_file(name):
    text = script(name)
    assert text.startswith((STATIC / "base.js").read_text(encoding="utf-8"))
    assert text.endswith((STATIC / f"{name}.js").read_text(encoding="utf-8"))
    assert len(re.findall(r"^export default", text, re.MULTILINE)) == 1


@pytest.mark.parametrize("name", WIDGETS)
def test_nothing_is_loaded_from_elsewhere(name):
    text = script(name) + style(name)
    assert not re.findall(r"https?://|@import|\bimport\s*[({\"']|\bfrom\s+[\"']|url\([\"']?//", text)


def test_the_base_lists_every_function_it_offers():
    base = (STATIC / "base.js").read_text(encoding="utf-8")
    contents = base.split("\n\n")[0]
    offered = re.findall(r"^function (\w+)\(", base, re.MULTILINE)
    assert len(offered) > 15
    assert [name for name in offered if not re.search(rf"\b{name}\(", contents)] == []


def test_an_unknown_widget_is_named():
    with pytest.raises(FileNotFoundError, match="nothing"):
        script("nothing")
