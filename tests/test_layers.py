"""Directions of imports: layers follow the syllabus, and a lesson uses only layers already met.

The rule is a table. grimp reads every import statement in labkit, also those inside functions, and
runs none; an offence is reported as module:line. Within a layer no module may need itself, by
whatever detour.
"""

import ast
import subprocess
import sys
from pathlib import Path

import grimp
import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]

GROUND = (
    "formats",
    "interop",
    "findings",
    "processes",
    "records",
)  # what every layer that runs something may use
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
# Layer -> the layers that stand to its left.
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
    "commands": ("formats", "checkout", "site", "testing", "gpu", *BELOW_COMMANDS),
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
    "machine": ENGINE
    | {"jupyter_core"},  # where JupyterLab looks for extensions; only inside a function
    "gemm": ENGINE | {"numba"},  # where there is one: compiled
    "testing": ENGINE | {"pytest"},  # only the plugin, which pytest loads
    "bench": ENGINE | {"triton"},  # where there is one: triton_gemm
    # wandb where there is one: the histograms that it shows; markupsafe for annotations
    "instrument": ENGINE | {"wandb", "markupsafe"},
    "frameworks": ENGINE
    | {"accelerate", "fastai", "fastcore", "lightning", "transformers"},  # a file each
    "widgets": ENGINE | {"matplotlib", "ipywidgets", "anywidget", "traitlets", "IPython"},
    "grading": ENGINE | {"nbformat", "IPython"},
    "classroom": {"jupyterhub"},  # where there is one: hub_config
    "site": {"markupsafe", "matplotlib", "nbclient", "nbconvert", "nbformat", "pygments"},
}
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
def house() -> grimp.ImportGraph:
    """The graph of all imports; what is imported from outside is a node for each distribution."""
    return grimp.build_graph("labkit", include_external_packages=True, cache_dir=None)


def layer_of(module: str) -> str:
    return (*module.split("."), "__init__")[1]


def offences(graph: grimp.ImportGraph) -> list[str]:
    """Return every import that the tables do not allow, as "module:line: why"."""
    found = []
    for importer in sorted(graph.find_descendants("labkit") | {"labkit"}):
        layer = layer_of(importer)
        if layer not in TO_THE_LEFT:
            found.append(
                f"{importer}:1: {layer} is no layer of the house; give it a place in the table "
                "of this test"
            )
            continue
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            if imported.startswith("labkit"):
                allowed = layer_of(imported) in (layer, "__init__", *TO_THE_LEFT[layer])
            else:
                allowed = (
                    imported in FROM_OUTSIDE.get(layer, ENGINE)
                    or imported in sys.stdlib_module_names
                )
            lines = [
                each["line_number"]
                for each in graph.get_import_details(importer=importer, imported=imported)
            ]
            if not allowed:
                found.append(f"{importer}:{min(lines)}: {layer} must not import {imported}")
    return found


def upward_in_amp(graph: grimp.ImportGraph) -> list[str]:
    """Return every import inside amp that is not to the left, as "module:line: why"."""
    found = []
    for importer in sorted(graph.find_descendants("labkit.amp") | {"labkit.amp"}):
        own = room_in_amp(importer)
        if own not in AMP:
            found.append(
                f"{importer}:1: {own} has no place in amp; give it one in AMP of this test"
            )
            continue
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            if not imported.startswith("labkit.amp"):
                continue
            if room_in_amp(imported) not in AMP[: AMP.index(own) + 1]:
                details = graph.get_import_details(importer=importer, imported=imported)
                line = min(each["line_number"] for each in details)
                found.append(f"{importer}:{line}: {own} must not import {imported}")
    return found


def room_in_amp(module: str) -> str:
    """Return the package or module of amp that a module belongs to."""
    return (*module.split("."), "__init__")[2]


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    modules = [module for module in graph.modules if module.startswith("labkit")]
    needs = nx.DiGraph(
        (each, other) for each in modules for other in graph.find_modules_directly_imported_by(each)
    )
    return [sorted(group) for group in nx.strongly_connected_components(needs) if len(group) > 1]


def notebook_offences(lessons: Path) -> list[str]:
    """Return imports in lessons that go deeper than a layer or a lesson, or take everything with
    `*`.
    """
    found = []
    for file in sorted(lessons.glob("*/lesson.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [alias.name for alias in node.names]
            for module in names if isinstance(node, ast.Import) else [node.module or ""]:
                top, *below = module.split(".")
                # its faces are imported as the scripts of others import them
                script = below[:1] == ["frameworks"]
                layer = len(below) == 1 and below[0] in LAYERS
                lesson = below == [file.parent.name]
                if (
                    "*" in names
                    or (top == "labkit" and not script and not layer)
                    or (top == "labkit_lessons" and not lesson)
                ):
                    what = (
                        "import names from labkit.<layer> or the lesson's package, not "
                        f"{module} or *"
                    )
                    found.append(f"{file.parent.name}:{node.lineno}: {what}")
    return found


def test_worked_example_a_wrong_import_is_reported_with_its_line(house, tmp_path):
    planted = [
        ("labkit.formats.format", "torch", 3),
        ("labkit.grading.judge", "labkit.widgets.base", 7),
    ]
    for importer, imported, line in planted:
        house.add_import(importer=importer, imported=imported, line_number=line, line_contents="")
        (offence,) = offences(house)
        assert offence.startswith(f"{importer}:{line}: ")
        house.remove_import(importer=importer, imported=imported)
    back_up = ("labkit.amp.graph.explain", "labkit.amp.engine")
    house.add_import(importer=back_up[0], imported=back_up[1], line_number=9, line_contents="")
    assert upward_in_amp(house) == [f"{back_up[0]}:9: graph must not import {back_up[1]}"]
    house.remove_import(importer=back_up[0], imported=back_up[1])
    house.add_import(importer="labkit.formats.format", imported="labkit.formats.rounding")
    assert any("labkit.formats.format" in circle for circle in circles(house))
    house.remove_import(importer="labkit.formats.format", imported="labkit.formats.rounding")
    wrong = (
        "from labkit.amp.loss_scaling import advance",
        "from labkit import amp",
        "from labkit.amp import *",
        "from labkit_lessons.lesson_0 import look",
        "from labkit_lessons.lesson_4.cases import look",
    )
    for number, source in enumerate(wrong):
        (tmp_path / f"lesson_{number}").mkdir()
        (tmp_path / f"lesson_{number}" / "lesson.py").write_text(
            f"import labkit.amp\n{source}\n", encoding="utf-8"
        )
    assert [each.split()[0] for each in notebook_offences(tmp_path)] == [
        "lesson_0:2:",
        "lesson_1:2:",
        "lesson_2:2:",
        "lesson_3:2:",
        "lesson_4:2:",
    ]


def test_the_house_keeps_its_layers(house):
    assert offences(house) == []
    assert upward_in_amp(house) == []
    assert circles(house) == []
    assert notebook_offences(ROOT / "labkit_lessons") == []


def naming_a_lesson(package: Path) -> set[str]:
    """Return the files of a package in which the name of a lesson's folder stands."""
    folders = [path.name.encode() for path in (ROOT / "labkit_lessons").glob("lesson_*")]
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {
        path.relative_to(package).as_posix()
        for path in files
        if any(folder in path.read_bytes() for folder in folders)
    }


def test_no_file_of_labkit_names_a_lessons_folder():
    assert "__init__.py" in naming_a_lesson(ROOT / "labkit_lessons"), "the search finds names"
    assert naming_a_lesson(ROOT / "labkit") == set()


def test_a_package_loads_nothing_that_it_can_do_without():
    """Each is imported for the first time in a process of its own, all in one program."""
    unwanted = {
        "labkit.formats": ("torch",),
        "labkit.amp": ("ipywidgets", "anywidget", "matplotlib", "IPython", "jinja2", "numba"),
        # a second of every kernel's start; loaded when a figure is drawn
        "labkit.widgets": ("matplotlib",),
    }
    program = f"""
import importlib, sys
for module, names in {unwanted!r}.items():  # from the fewest imports to the most
    importlib.import_module(module)
    print(module, [name for name in names if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [f"{module} []" for module in unwanted]
    assert done.stderr == ""
