"""Imports between the layers of labkit go one way only, and lessons import from layers only.

TO_THE_LEFT is the rule. grimp reads every import statement in labkit, also those inside functions,
without running any. A violation is reported as module:line. No module may import itself through
others.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grimp
import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]

# The layers that every layer which runs something may use.
GROUND = ("formats", "interop", "findings", "processes", "records")
LOW = (*GROUND, "modes", "machine")
BELOW_FAULTS = (*LOW, "gemm", "bench", "instrument", "amp", "train", "frameworks")
BELOW_COMMANDS = (
    "records",
    "course",
    "machine",
    "bench",
    "instrument",
    "amp",
    "train",
    "faults",
    "clinic",
    "grading",
    "classroom",
)
BELOW_WIDGETS = (*BELOW_FAULTS, "course", "faults", "clinic")
# Layer -> the layers to its left, which it may import.
TO_THE_LEFT: dict[str, tuple[str, ...]] = {
    "formats": (),
    "findings": (),
    "processes": (),
    "interop": ("formats",),
    "records": ("formats", "interop"),
    "course": ("records",),
    "moved": (),
    "modes": GROUND,
    "machine": GROUND,
    "gemm": (*GROUND, "modes"),
    "bench": (*GROUND, "machine", "gemm"),
    "testing": (*GROUND, "modes", "gemm", "instrument"),
    "instrument": (*GROUND, "modes"),
    "amp": (*GROUND, "modes", "gemm", "instrument"),
    "train": (*LOW, "gemm", "bench", "instrument", "amp"),
    "frameworks": (*LOW, "gemm", "instrument", "amp", "train"),
    "faults": BELOW_FAULTS,
    "clinic": (*BELOW_FAULTS, "course", "faults", "moved"),
    "widgets": (*BELOW_WIDGETS, "gpu", "moved"),
    "grading": (*BELOW_WIDGETS, "moved"),
    "classroom": (*BELOW_WIDGETS, "grading"),
    "gpu": (*BELOW_FAULTS, "faults"),
    "checkout": ("machine",),
    "site": ("records", "widgets"),
    "export": ("moved",),
    "commands": ("formats", "findings", "checkout", "site", "testing", "gpu", *BELOW_COMMANDS),
    # it names the functions of its commands, and imports the one that runs
    "cli": ("commands", "course"),
    "__main__": ("cli",),
    "__init__": (),
}
# The packages and modules of amp; each may use those to its left.
AMP = (
    "casting",
    "loss_scaling",
    "ranges",
    "masters",
    "low_bit",
    "graph",
    "recipe",
    "requirements",
    "boundary",
    "step",
    "engine",
    "checkpoint",
    "ema",
    "distributed",
    "__init__",
)
ENGINE = {"numpy", "torch"}
# The packages from outside that a layer may import; any other layer imports numpy and torch.
FROM_OUTSIDE: dict[str, set[str]] = {
    **{
        name: set()
        for name in (
            "course",
            "moved",
            "findings",
            "processes",
            "checkout",
            "commands",
            "cli",
            "__main__",
            "__init__",
        )
    },
    "formats": {"numpy"},
    # inside functions only: IPython knows whether a notebook runs, jinja2 makes pages (templates)
    "records": {"torch", "IPython", "jinja2", "markupsafe"},
    # jupyter_core knows where JupyterLab looks for extensions; imported inside a function
    "machine": ENGINE | {"jupyter_core"},
    # numba is optional: the compiled emulator
    "gemm": ENGINE | {"numba"},
    # only the plugin, which pytest loads
    "testing": ENGINE | {"pytest"},
    # triton is optional: triton_gemm
    "bench": ENGINE | {"triton"},
    # wandb is optional: histograms that it shows; markupsafe for annotations
    "instrument": ENGINE | {"wandb", "markupsafe"},
    # a file for each framework
    "frameworks": ENGINE | {"accelerate", "fastai", "fastcore", "lightning", "transformers"},
    "widgets": ENGINE | {"matplotlib", "ipywidgets", "anywidget", "traitlets", "IPython"},
    "grading": ENGINE | {"nbformat", "IPython"},
    # jupyterhub is optional: hub_config
    "classroom": {"jupyterhub"},
    "site": {"markupsafe", "matplotlib", "nbclient", "nbconvert", "nbformat", "pygments"},
}
# The layers from which a lesson may import.
LAYERS = set(TO_THE_LEFT) - {
    "classroom",
    "gpu",
    "site",
    "moved",
    "findings",
    "processes",
    "checkout",
    "commands",
    "cli",
    "__main__",
    "__init__",
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """The graph of all imports; what is imported from outside is a node for each distribution."""
    return grimp.build_graph("labkit", include_external_packages=True, cache_dir=None)


def layer_of(module: str) -> str:
    """Return the package or module of labkit that a module belongs to."""
    # labkit itself is in its __init__
    parts = [*module.split("."), "__init__"]
    return parts[1]


def offences(graph: grimp.ImportGraph) -> list[str]:
    """Return every import that the tables do not allow, as "module:line: why"."""
    found = []
    for importer in sorted(graph.find_descendants("labkit") | {"labkit"}):
        layer = layer_of(importer)
        if layer not in TO_THE_LEFT:
            found.append(
                f"{importer}:1: {layer} is not in TO_THE_LEFT; add it there, with the layers that "
                "it may import"
            )
            continue
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            if imported.startswith("labkit"):
                allowed = layer_of(imported) in (layer, "__init__", *TO_THE_LEFT[layer])
            else:
                packages = FROM_OUTSIDE.get(layer, ENGINE)
                allowed = imported in packages or imported in sys.stdlib_module_names
            if not allowed:
                line = first_line(graph, importer, imported)
                found.append(f"{importer}:{line}: {layer} must not import {imported}")
    return found


def first_line(graph: grimp.ImportGraph, importer: str, imported: str) -> int:
    """Return the line on which a module first imports another."""
    details = graph.get_import_details(importer=importer, imported=imported)
    return min(each["line_number"] for each in details)


def upward_in_amp(graph: grimp.ImportGraph) -> list[str]:
    """Return every import inside amp that is not to the left, as "module:line: why"."""
    found = []
    for importer in sorted(graph.find_descendants("labkit.amp") | {"labkit.amp"}):
        own = part_of_amp(importer)
        if own not in AMP:
            found.append(
                f"{importer}:1: {own} has no place in amp; give it one in AMP of this test"
            )
            continue
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            if not imported.startswith("labkit.amp"):
                continue
            if part_of_amp(imported) not in AMP[: AMP.index(own) + 1]:
                line = first_line(graph, importer, imported)
                found.append(f"{importer}:{line}: {own} must not import {imported}")
    return found


def part_of_amp(module: str) -> str:
    """Return the package or module of amp that a module belongs to."""
    parts = [*module.split("."), "__init__"]
    return parts[2]


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    modules = [module for module in graph.modules if module.startswith("labkit")]
    needs = nx.DiGraph(
        (each, other) for each in modules for other in graph.find_modules_directly_imported_by(each)
    )
    return [sorted(group) for group in nx.strongly_connected_components(needs) if len(group) > 1]


def notebook_offences(lessons: Path) -> list[str]:
    """Return wrong imports of lessons as "folder:line: what to do".

    An import is wrong from below a layer, from another lesson, or of everything with `*`.
    """
    found = []
    for file in sorted(lessons.glob("*/lesson.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
                imports_all = False
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
                imports_all = node.names[0].name == "*"
            else:
                continue
            found += [
                f"{file.parent.name}:{node.lineno}: import names from labkit.<layer> or the "
                f"lesson's package, not {module} or *"
                for module in modules
                if imports_all or not lesson_may_import(module, file.parent.name)
            ]
    return found


def lesson_may_import(module: str, lesson: str) -> bool:
    """Return whether a lesson, named by its folder, may import from a module."""
    top, *below = module.split(".")
    if top == "labkit":
        # Faces of frameworks are imported as scripts import the frameworks: from their modules.
        is_face = below[:1] == ["frameworks"]
        return is_face or (len(below) == 1 and below[0] in LAYERS)
    if top == "labkit_lessons":
        return below == [lesson]
    return True


@contextmanager
def planted(graph: grimp.ImportGraph, importer: str, imported: str, line: int) -> Iterator[None]:
    """Add an import to the graph while the block runs."""
    graph.add_import(importer=importer, imported=imported, line_number=line, line_contents="")
    try:
        yield
    finally:
        graph.remove_import(importer=importer, imported=imported)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("labkit.formats.format", "torch"),
        ("labkit.grading.judge", "labkit.widgets.base"),
    ],
)
def test_a_wrong_import_is_reported_with_its_line(graph, importer: str, imported: str) -> None:
    with planted(graph, importer, imported, line=3):
        (offence,) = offences(graph)
    assert offence.startswith(f"{importer}:3: ")


def test_a_wrong_import_inside_amp_is_reported(graph) -> None:
    importer = "labkit.amp.graph.explain"
    imported = "labkit.amp.engine"
    with planted(graph, importer, imported, line=9):
        assert upward_in_amp(graph) == [f"{importer}:9: graph must not import {imported}"]


def test_a_circle_of_imports_is_found(graph) -> None:
    with planted(graph, "labkit.formats.format", "labkit.formats.rounding", line=1):
        assert any("labkit.formats.format" in circle for circle in circles(graph))


@pytest.mark.parametrize(
    "source",
    [
        "from labkit.amp.loss_scaling import advance",
        "from labkit import amp",
        "from labkit.amp import *",
        "from labkit_lessons.lesson_other import look",
        "from labkit_lessons.lesson_here.cases import look",
    ],
)
def test_a_wrong_import_in_a_lesson_is_reported(source: str, tmp_path: Path) -> None:
    (tmp_path / "lesson_here").mkdir()
    text = f"import labkit.amp\n{source}\n"
    (tmp_path / "lesson_here" / "lesson.py").write_text(text, encoding="utf-8")
    (offence,) = notebook_offences(tmp_path)
    assert offence.startswith("lesson_here:2: ")


def test_layers_import_only_what_they_may(graph) -> None:
    assert offences(graph) == []


def test_packages_of_amp_import_to_the_left_only(graph) -> None:
    assert upward_in_amp(graph) == []


def test_no_module_imports_itself_through_others(graph) -> None:
    assert circles(graph) == []


def test_lessons_import_from_layers_only() -> None:
    assert notebook_offences(ROOT / "labkit_lessons") == []


def naming_a_lesson(package: Path) -> set[str]:
    """Return the files of a package that contain the name of a lesson's folder."""
    folders = [path.name.encode() for path in (ROOT / "labkit_lessons").glob("lesson_*")]
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {
        path.relative_to(package).as_posix()
        for path in files
        if any(folder in path.read_bytes() for folder in folders)
    }


def test_no_file_of_labkit_names_a_lessons_folder():
    # The search finds the names where they are.
    assert "__init__.py" in naming_a_lesson(ROOT / "labkit_lessons")
    assert naming_a_lesson(ROOT / "labkit") == set()


def test_importing_a_package_does_not_import_slow_ones():
    """The packages are imported in one process, in this order.

    So an earlier one must not load what a later one must not.
    """
    unwanted = {
        "labkit.formats": ("torch",),
        "labkit.amp": ("ipywidgets", "anywidget", "matplotlib", "IPython", "jinja2", "numba"),
        # it takes a second, and is imported when a figure is drawn
        "labkit.widgets": ("matplotlib",),
    }
    program = f"""
import importlib, sys
for module, names in {unwanted!r}.items():
    importlib.import_module(module)
    print(module, [name for name in names if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [f"{module} []" for module in unwanted]
    assert done.stderr == ""
