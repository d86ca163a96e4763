"""Imports run one way: the layers are the syllabus, and a lesson uses only what was already met.

The rule is a table. Every import statement in labkit is read (not run) and looked up in it, also those inside
functions; an offence is reported as file:line. Within a layer no module may need itself, by whatever detour.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

GROUND = ("formats", "interop", "records")  # what every layer that runs something may use
LOW = (*GROUND, "modes", "machine")
BELOW_FAULTS = (*LOW, "gemm", "bench", "instrument", "amp", "train", "frameworks")
BELOW_COMMANDS = tuple("records course machine bench instrument amp train faults clinic grading classroom".split())
BELOW_WIDGETS = (*BELOW_FAULTS, "course", "faults", "clinic")
# Layer -> the layers that stand to its left, and the packages from outside it may import.
TO_THE_LEFT: dict[str, tuple[str, ...]] = {
    "formats": (),
    "interop": ("formats",),
    "records": ("formats", "interop"),
    "course": ("records",),
    "modes": GROUND,
    "machine": GROUND,
    "gemm": (*GROUND, "modes"),
    "bench": (*GROUND, "machine", "gemm"),
    "testing": (*GROUND, "gemm"),
    "instrument": (*GROUND, "modes"),
    "amp": (*GROUND, "modes", "gemm", "instrument"),
    "train": (*LOW, "gemm", "instrument", "amp"),
    "frameworks": (*LOW, "gemm", "instrument", "amp", "train"),
    "faults": BELOW_FAULTS,
    "clinic": (*BELOW_FAULTS, "course", "faults"),
    "widgets": BELOW_WIDGETS,
    "grading": BELOW_WIDGETS,
    "classroom": (*BELOW_WIDGETS, "grading"),
    "gpu": (*BELOW_FAULTS, "faults"),
    "checkout": ("records",),
    "export": ("records",),
    "site": ("records", "export", "widgets"),
    "commands": ("formats", "checkout", "export", "site", "testing", "gpu", *BELOW_COMMANDS),
    "cli": ("commands", "course"),  # it names the functions of its commands, and imports the one that runs
    "__main__": ("cli",),
    "__init__": (),
}
ENGINE = {"numpy", "torch"}
FROM_OUTSIDE: dict[str, set[str]] = {
    "formats": {"numpy"},
    "interop": ENGINE,
    "records": {"torch", "IPython"},  # which knows whether a notebook runs; only inside a function
    "course": set(),
    "modes": ENGINE,
    "machine": ENGINE | {"jupyter_core"},  # where JupyterLab looks for extensions; only inside a function
    "gemm": ENGINE | {"numba"},  # where there is one: compiled
    "testing": ENGINE | {"pytest"},  # only the plugin, which pytest loads
    "bench": ENGINE | {"triton"},  # where there is one: triton_gemm
    "instrument": ENGINE | {"wandb"},  # where there is one: the histograms that it shows
    "amp": ENGINE,
    "train": ENGINE,
    "frameworks": ENGINE | {"accelerate", "fastai", "fastcore", "lightning", "transformers"},  # a file each
    "faults": ENGINE,
    "clinic": ENGINE,
    "widgets": ENGINE | {"matplotlib", "ipywidgets", "anywidget", "traitlets", "IPython"},
    "grading": ENGINE | {"nbformat", "IPython"},
    "classroom": {"jupyterhub"},  # where there is one: hub_config
    "gpu": ENGINE,
    "checkout": set(),
    "export": {"matplotlib", "nbconvert", "nbformat"},
    "site": {"nbclient", "nbconvert", "nbformat", "pygments"},
    "commands": set(),
    "cli": set(),
    "__main__": set(),
    "__init__": set(),
}
LAYERS = set(TO_THE_LEFT) - {"classroom", "gpu", "site", "checkout", "commands", "cli", "__main__", "__init__"}


def imports(file: Path, package: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, module, name) for each import in a file, relative ones resolved; name is "" for `import module`.

    A package that imports whatever is in it needs "package.*".
    """
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name, "") for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                origin = ".".join([*base, *([module] if module else [])])
                yield from ((node.lineno, origin, alias.name) for alias in names)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=module), *_]):
                if called in ("import_module", "__import__"):
                    yield node.lineno, module, ""
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.JoinedStr(values=[ast.FormattedValue(), *_])]):
                yield node.lineno, f"{package}.*", ""  # f"{__name__}.{name}": each module of the package


def layer_offences(root: Path) -> list[str]:
    """Return every import in root/labkit that the table does not allow, as "file:line: why"."""
    offences = []
    for file in sorted((root / "labkit").rglob("*.py")):
        path = file.relative_to(root)
        layer = Path(path.parts[1]).stem
        if layer not in TO_THE_LEFT:
            offences.append(f"{path}:1: {layer} is no layer of the house; give it a place in the table of this test")
            continue
        for line, module, name in imports(file, ".".join(path.parts[:-1])):
            why = _violation(layer, module, name)
            if why:
                offences.append(f"{path}:{line}: {why}")
    return offences


def _violation(layer: str, module: str, name: str) -> str:
    top, *below = module.split(".")
    if top in sys.stdlib_module_names:
        return ""
    if top != "labkit":
        return "" if top in FROM_OUTSIDE[layer] else f"{layer} must not import {top}"
    target = below[0] if below else name
    if not target or target in (layer, "__version__") or target in TO_THE_LEFT[layer]:
        return ""
    return f"{layer} must not import labkit.{target}, which does not stand to its left"


def circles(root: Path) -> list[list[str]]:
    """Return the modules of root/labkit that need one another in a circle; those under TYPE_CHECKING count as well."""
    files = {_module(file.relative_to(root)): file for file in sorted((root / "labkit").rglob("*.py"))}
    needs = {module: _needed(files, module) for module in files}
    found: list[list[str]] = []
    for module in files:
        if not any(module in circle for circle in found) and module in (reached := _reached(needs, module)):
            found.append(sorted(other for other in reached if module in _reached(needs, other)))
    return found


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _needed(files: dict[str, Path], module: str) -> set[str]:
    """Return the modules that one imports from: `from package import name` may mean the package, or a module in it."""
    package = module if files[module].name == "__init__.py" else module.rpartition(".")[0]
    pairs = [(origin, name) for _, origin, name in imports(files[module], package)]
    below = {file for file in files for origin, _ in pairs if origin == f"{file.rpartition('.')[0]}.*"}
    return below | {f"{o}.{name}" if f"{o}.{name}" in files else o for o, name in pairs} & set(files)


def _reached(needs: dict[str, set[str]], start: str) -> set[str]:
    """Return all that a module needs, directly or through others."""
    reached: set[str] = set()
    ahead = set(needs[start])
    while ahead:
        reached.add(module := ahead.pop())
        ahead |= needs[module] - reached
    return reached


def notebook_offences(root: Path) -> list[str]:
    """Return imports in root/notebooks/lessons that go deeper than a layer, or take everything with `*`."""
    offences = []
    for file in sorted((root / "notebooks" / "lessons").glob("*/lesson.py")):
        for line, module, name in imports(file, ""):
            place = f"{file.relative_to(root)}:{line}"
            top, *below = module.split(".")
            script = below[:1] == ["frameworks"]  # its faces are imported as the scripts of others import them
            if top == "labkit" and not script and (len(below) != 1 or below[0] not in LAYERS):
                offences.append(f"{place}: a notebook imports from labkit.<layer>, not from {module}")
            if name == "*":
                offences.append(f"{place}: a notebook names what it imports, never *")
    return offences


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write a house of these files, each a source text."""
    for path, source in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source, encoding="utf-8")
    return root


def test_each_wrong_import_is_reported_with_its_line(tmp_path):
    right = {
        "labkit/formats/format.py": '"""Numbers."""\nimport numpy as np\n',
        "labkit/gemm/product.py": "import torch\nfrom labkit.formats import FP16\n",
    }
    assert layer_offences(plant(tmp_path / "right", right)) == []
    wrong = [
        ("formats/format.py", "import torch", 1),
        ("formats/format.py", "from labkit import interop", 1),
        ("interop.py", "\nfrom labkit.gemm import matmul", 2),
        ("instrument/fate.py", "import labkit.gemm.blocks", 1),
        ("instrument/fate.py", "from ..gemm import blocks", 1),
        ("instrument/deep/fate.py", "from ... import gemm", 1),
        ("amp/loss_scaling/scaler.py", "def late():\n    from labkit.train import train", 2),
        ("train/run.py", "import importlib\nimportlib.import_module('labkit.grading')", 2),
        ("train/run.py", "if TYPE_CHECKING:\n    import matplotlib.pyplot as plt", 2),
        ("clinic/diagnose.py", "from anywidget import AnyWidget", 1),
        ("grading/judge.py", "from labkit.widgets import pulse", 1),
        ("widgets/bench/widget.py", "from labkit.grading import check", 1),
        ("__init__.py", "from labkit.formats import FP16", 1),
        ("helpers.py", "", 1),
    ]
    for number, (path, source, line) in enumerate(wrong):
        (offence,) = layer_offences(plant(tmp_path / str(number), {f"labkit/{path}": source}))
        assert offence.startswith(f"labkit/{path}:{line}: "), source


def test_each_circle_of_modules_is_found(tmp_path):
    house = {
        "labkit/amp/__init__.py": "from labkit.amp.engine import Engine\n",
        "labkit/amp/engine.py": "from labkit.amp.resume import load\n",
        "labkit/amp/resume.py": "import torch\n",
    }
    assert circles(plant(tmp_path / "right", house)) == []
    wrong = [
        "from labkit.amp.engine import Engine",
        "import labkit.amp.engine",
        "from . import engine",
        "from .engine import Engine",
        "def late():\n    from labkit.amp.engine import Engine",
        "if TYPE_CHECKING:\n    from labkit.amp.engine import Engine",
        "import importlib\nimportlib.import_module('labkit.amp.engine')",
        "from labkit.amp import Engine",  # through the package, which imports the engine
        "from labkit.amp.resume import itself",
    ]
    for number, source in enumerate(wrong):
        (circle,) = circles(plant(tmp_path / str(number), {**house, "labkit/amp/resume.py": source}))
        assert "labkit.amp.resume" in circle, source


def test_a_package_that_imports_all_its_modules_needs_each_of_them(tmp_path):
    house = {
        "labkit/grading/tables/__init__.py": 'ALL = [import_module(f"{__name__}.{id}") for id in IDS]',
        "labkit/grading/tables/one.py": "from labkit.grading.judge import Paper",
        "labkit/grading/judge.py": "from labkit.grading.tables import ALL",
    }
    assert len(circles(plant(tmp_path, house))) == 1
    assert circles(plant(tmp_path, {"labkit/grading/tables/one.py": "import torch"})) == []


def test_each_wrong_import_in_a_notebook_is_reported(tmp_path):
    wrong = [
        "from labkit.amp.loss_scaling.scaler import advance",
        "from labkit import amp",
        "import labkit",
        "from labkit.amp import *",
        "from labkit.cli import main",
    ]
    lesson = "notebooks/lessons/lesson_01_numbers/lesson.py"
    for source in wrong:
        plant(tmp_path, {lesson: f"# %%\nfrom labkit.amp import advance\n{source}\n"})
        (offence,) = notebook_offences(tmp_path)
        assert offence.startswith(f"{lesson}:3: "), source


def test_the_house_keeps_its_layers():
    assert layer_offences(ROOT) == []
    assert [" <-> ".join(circle) for circle in circles(ROOT)] == []
    assert notebook_offences(ROOT) == []


def test_a_package_loads_nothing_that_it_can_do_without():
    """Each is imported for the first time in a process of its own, all in one program."""
    unwanted = {
        "labkit.formats": ("torch",),
        "labkit.amp": ("ipywidgets", "anywidget", "matplotlib", "IPython", "numba"),
        "labkit.widgets": ("matplotlib",),  # a second of every kernel's start; loaded when a figure is drawn
    }
    program = f"""
import importlib, sys
for module, names in {unwanted!r}.items():  # from the fewest imports to the most
    importlib.import_module(module)
    print(module, [name for name in names if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines(), done.stderr) == ([f"{module} []" for module in unwanted], "")
