"""The wheel: built, installed into an empty environment, and used without a checkout."""

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path

import jedi
import pytest
from jupyterlab_server.settings_utils import _get_overrides
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import labkit
from labkit.amp import RECIPES
from labkit.classroom.wheel import files_of, wheel_of
from labkit.course import lessons
from labkit.train import TASKS, train
from tests.slowness import slowness

ROOT = Path(__file__).parents[1]
PACKAGES = Path(sysconfig.get_path("purelib"))

# Runs before everything else in the new environment: opening a file of the checkout is an error.
HIDES_THE_CHECKOUT = f"""
import os, sys
ROOT, PACKAGES = {str(ROOT) + os.sep!r}, {str(Path(sys.prefix)) + os.sep!r}

def hidden(event, arguments):
    is_read = event in ("open", "os.listdir", "os.scandir")
    if is_read and arguments and isinstance(arguments[0], str):
        path = os.path.abspath(arguments[0])
        if path.startswith(ROOT) and not path.startswith(PACKAGES):
            raise PermissionError(f"{{path}} is in the checkout, which is hidden here")

sys.addaudithook(hidden)
"""


class Installed:
    """The lab from its wheel, in an environment that otherwise has only what the lab needs.

    Attributes:
        folder: A folder outside of the checkout.
        wheel: The path of the wheel.
        bin: The folder of the environment's programs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheel = build(folder / "dist")
        self.bin = environment(folder / "venv", self.wheel)

    def run(self, *command: str) -> str:
        """Run a program of the environment outside of the checkout and return what it prints."""
        return call([str(self.bin / command[0]), *command[1:]], self.folder, self.bin)


def environment(folder: Path, wheel: Path) -> Path:
    """Create an environment with a wheel, and return its folder of programs.

    Its programs cannot read the checkout. They use the other packages of the present environment.
    """
    venv.create(folder, with_pip=False)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python")]
    options = ["--disable-pip-version-check", "--no-deps", "--no-index"]
    call([*pip, "install", *options, str(wheel)], folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "hides_the_checkout.py").write_text(HIDES_THE_CHECKOUT)
    (packages / "others.pth").write_text(f"import hides_the_checkout\n{PACKAGES}\n")
    return programs


def build(folder: Path) -> Path:
    """Build the wheel in a copy, so that the checkout stays as it is."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    copy = folder.parent / "source"
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
    ]
    call([*pip, "--no-index", "--wheel-dir", str(folder), str(copy)], copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


def call(command: list[str], folder: Path, programs: Path | None = None) -> str:
    """Run a command in a folder, which is its home folder, too, and return what it prints.

    Args:
        command: The command, which must succeed.
        folder: The folder.
        programs: A folder of programs that comes first on the path.
    """
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LABKIT_DATA")
    }
    # The front ends that pip would install.
    environment["JUPYTER_PATH"] = str(Path(sys.prefix, "share", "jupyter"))
    environment |= dict.fromkeys(("HOME", "USERPROFILE"), str(folder))
    if programs is not None:
        environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    limit = 200 * slowness()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The lab, built and installed once for all tests."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the lab is not known here")
    return Installed(tmp_path_factory.mktemp("far away"))


pytestmark = pytest.mark.timeout(600 * slowness())


@pytest.fixture(scope="module")
def names(installed: Installed) -> list[str]:
    """The names of the files in the wheel."""
    with zipfile.ZipFile(installed.wheel) as archive:
        return archive.namelist()


def test_no_file_is_in_the_wheel_twice(names: list[str]) -> None:
    assert len(names) == len(set(names))


def test_data_and_notebooks_are_in_the_wheel(names: list[str]) -> None:
    paths = [*ROOT.glob("data/**/*.*"), *ROOT.glob("notebooks/*.ipynb")]
    assert {f"labkit/{path.relative_to(ROOT).as_posix()}" for path in paths} <= set(names)


def test_the_wheel_has_no_other_packages(names: list[str]) -> None:
    assert not [name for name in names if name.startswith(("tests", "data", "notebooks", "docs"))]


def test_solutions_are_not_in_the_wheel(names: list[str]) -> None:
    """They are in folders called `source`."""
    assert not [name for name in names if "source" in Path(name).parts]


# Prints where labkit is, the error of reading the checkout, and the losses of a training.
TRAINS = f"""
import labkit
from labkit.amp import RECIPES
from labkit.train import TASKS, train
print(labkit.__file__)
try: open({str(ROOT / "README.md")!r})
except OSError as error: print(error)
print([step.loss for step in train(TASKS["digits"], RECIPES["O2"], steps=20).steps])
"""


def test_the_wheel_trains_without_a_checkout(installed: Installed) -> None:
    file, error, losses = installed.run("python", "-c", TRAINS).splitlines()
    assert Path(file).is_relative_to(installed.folder / "venv")
    assert "is hidden here" in error
    losses_here = [step.loss for step in train(TASKS["digits"], RECIPES["O2"], steps=20).steps]
    assert losses == str(losses_here)
    assert losses_here[-1] < losses_here[0]


def test_jupyterlab_saves_the_state_of_widgets(installed: Installed) -> None:
    """By settings that any JupyterLab of the environment reads."""
    settings = installed.folder / "venv" / "share" / "jupyter" / "lab" / "settings"
    overrides, error = _get_overrides(str(settings))
    assert error == ""
    assert overrides["@jupyter-widgets/jupyterlab-manager:plugin"]["saveState"] is True


def test_the_server_extension_is_enabled(installed: Installed) -> None:
    folder = installed.folder / "venv" / "etc" / "jupyter" / "jupyter_server_config.d"
    extensions = json.loads((folder / "fp16-lab.json").read_text())["ServerApp"]
    assert extensions == {"jpserver_extensions": {"labkit.machine.jupyter": True}}


INFORMATION = f"fp16_lab-{labkit.__version__}.dist-info/"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, installed: Installed) -> dict[str, bytes]:
    """The contents of a wheel that labkit.classroom makes; hatchling makes the other."""
    name, packed = wheel_of(ROOT, files_of(ROOT, lessons()), labkit.__version__)
    path = tmp_path_factory.mktemp("release") / name
    path.write_bytes(packed)
    return contents(path)


def test_a_release_has_the_files_of_a_built_wheel(
    installed: Installed, release: dict[str, bytes]
) -> None:
    built = contents(installed.wheel)
    assert built.keys() == release.keys()
    different = {name for name in release if release[name] != built[name]}
    assert different == {f"{INFORMATION}{name}" for name in ("METADATA", "RECORD", "WHEEL")}


def test_a_release_has_the_metadata_of_a_built_wheel(
    installed: Installed, release: dict[str, bytes]
) -> None:
    theirs = email.message_from_bytes(contents(installed.wheel)[f"{INFORMATION}METADATA"])
    own = email.message_from_bytes(release[f"{INFORMATION}METADATA"])
    assert own["Name"] == theirs["Name"]
    assert own["Version"] == theirs["Version"]
    assert SpecifierSet(own["Requires-Python"]) == SpecifierSet(theirs["Requires-Python"])
    assert set(own.get_all("Provides-Extra")) == set(theirs.get_all("Provides-Extra"))
    assert needs(own) == needs(theirs)


def needs(metadata: Message) -> set[str]:
    """Return the requirements of a wheel, their names as the index has them."""
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    for requirement in requirements:
        requirement.name = canonicalize_name(requirement.name)
    return {str(requirement) for requirement in requirements}


@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel(installed: Installed, tmp_path: Path) -> None:
    """It has the sources of the wheel and the documentation, but not the tests."""
    program = f"from hatchling.build import build_sdist; build_sdist({str(tmp_path)!r})"
    call([sys.executable, "-c", program], installed.folder / "source")
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("fp16_lab-*/")
    top = {path.name for path in source.iterdir()}
    wanted = {
        "labkit",
        "labkit_lessons",
        "notebooks",
        "data",
        "docs",
        "hatch_build.py",
        "README.md",
    }
    assert wanted <= top
    assert not top & {"tests", ".ci", "docker"}
    program = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    call([sys.executable, "-c", program], source)
    (wheel,) = tmp_path.glob("*.whl")
    assert contents(wheel) == contents(installed.wheel)


@pytest.fixture(scope="module")
def editable(installed: Installed) -> Path:
    """The wheel that pip makes of the copy of the checkout for an editable install."""
    folder = installed.folder / "editable"
    folder.mkdir()
    program = f"from hatchling.build import build_editable; build_editable({str(folder)!r})"
    call([sys.executable, "-c", program], installed.folder / "source")
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_editable_install_has_the_jupyter_settings(installed: Installed, editable: Path) -> None:
    data = f"fp16_lab-{labkit.__version__}.data/data/"
    built = contents(installed.wheel)
    assert {name: content for name, content in contents(editable).items() if ".data/" in name} == {
        f"{data}{place}": built[f"{data}{place}"]
        for place in (
            "etc/jupyter/jupyter_server_config.d/fp16-lab.json",
            "share/jupyter/lab/settings/overrides.d/fp16-lab.json",
        )
    }


IMPORTS_LESSONS = """
import labkit_lessons.lesson_10_clinic as lesson
print(lesson.__file__)
from labkit.course import lessons, lessons_folder
packages = {each.package().__name__.split(".")[0] for each in lessons()}
print(lessons_folder(), len(lessons()), packages)
"""


def test_lessons_are_imported_plainly_from_a_wheel(installed: Installed) -> None:
    file, lessons_found = installed.run("python", "-c", IMPORTS_LESSONS).splitlines()
    folder = Path(file).parents[1]
    assert folder.is_relative_to(installed.folder / "venv")
    assert lessons_found == f"{folder} {len(lessons())} {{'labkit_lessons'}}"


def test_an_editable_install_is_a_path_that_an_editor_follows(
    installed: Installed, editable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (line,) = [text for name, text in contents(editable).items() if name.endswith(".pth")]
    source = installed.folder / "source"
    # An import hook, which editors cannot follow, would be a line of Python.
    assert line.decode().strip() == str(source)
    programs = environment(installed.folder / "venv of an author", editable)
    file, _ = call([str(programs / "python"), "-c", IMPORTS_LESSONS], programs).splitlines()
    assert Path(file) == source / "labkit_lessons" / "lesson_10_clinic" / "__init__.py"
    author = jedi.create_environment(programs.parent, safe=False)
    code = "from labkit_lessons.lesson_10_clinic import "
    found = jedi.Script(code, path=installed.folder / "mine.py", environment=author).complete()
    assert {"CONSULTATIONS", "look", "treat"} <= {each.name for each in found}


def contents(wheel: Path) -> dict[str, bytes]:
    """Return name -> content of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.mark.slow
def test_the_check_runs_without_a_checkout(installed: Installed) -> None:
    report = installed.run("labkit", "check")
    assert re.search(rf" labkit +{re.escape(labkit.__version__)}", report)
    assert "digits read from" in report
    assert "✗" not in report


@pytest.mark.slow
def test_a_comparison_without_a_checkout_writes_into_the_home(
    installed: Installed,
) -> None:
    what = ["digits", "--recipes", "FP32", "O1", "--seeds", "0", "1", "2"]
    assert "O1" in installed.run("labkit", "compare", *what)
    assert (installed.folder / "fp16-lab" / "data" / "runs" / "digits").is_dir()
