"""What the browser gets: one text, complete, that loads nothing from elsewhere."""

import re
from importlib.resources import files

import pytest

from labkit.widgets.base.widget import script, style

FOLDERS = files("labkit.widgets")
SCRIPTS = {
    (folder.name, file.name): file.read_text(encoding="utf-8")
    for folder in FOLDERS.iterdir()
    if folder.is_dir()
    for file in folder.iterdir()
    if file.name.endswith(".js")
}
WIDGETS = sorted(folder for folder, file in SCRIPTS if file == "view.js")
SHARED = {  # folders that several widgets share
    "beat_scaler": ("driven",),
    "bits": ("bit_row",),
    "live": ("driven", "bench"),
    "underflow": ("histogram",),
    "workbench": ("driven", "bench"),
    "zoom": ("histogram", "bit_row"),
}


def folders(name):
    return (*SHARED.get(name, ()), name)


def test_every_widget_stands_in_a_folder():
    assert len(WIDGETS) > 10
    assert [file.name for file in FOLDERS.iterdir() if file.is_file()] == ["__init__.py"]


def test_a_module_is_the_base_then_its_own_files_and_loads_nothing():
    for name in WIDGETS:
        text = script(*folders(name))
        belonging = [source for (folder, _), source in SCRIPTS.items() if folder in ("base", *folders(name))]
        assert text.startswith(SCRIPTS["base", "base.js"]), name
        assert text.endswith(SCRIPTS[name, "view.js"]), name
        assert [source[:60] for source in belonging if text.count(source) != 1] == [], name
        assert len(text) == sum(map(len, belonging)) + len(belonging) - 1, f"{name} has something of another widget"
        assert len(re.findall(r"^export default", text, re.MULTILINE)) == 1, name
        declared = re.findall(r"^(?:async )?(?:function\*?|const|let|class) (\w+)", text, re.MULTILINE)
        assert sorted({word for word in declared if declared.count(word) > 1}) == [], f"declared twice in {name}"
        text += style(*folders(name))
        assert not re.findall(r"https?://|@import|\bimport\s*[({\"']|\bfrom\s+[\"']|url\([\"']?//", text), name


def test_the_base_lists_every_function_it_offers():
    base = "".join(source for (folder, _), source in SCRIPTS.items() if folder == "base")
    contents = SCRIPTS["base", "base.js"].split("\n\n")[0]
    offered = re.findall(r"^function (\w+)\(", base, re.MULTILINE)
    assert len(offered) > 15
    assert [name for name in offered if not re.search(rf"\b{name}\(", contents)] == []


def test_an_unknown_widget_is_named():
    with pytest.raises(FileNotFoundError, match="nothing"):
        script("nothing")
