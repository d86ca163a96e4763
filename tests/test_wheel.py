"""The wheel: built, installed into an empty environment, and used without a checkout."""

import csv
import email
import io
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

# Runs at the start of each Python of the new environment: reading a file of the checkout is then an
# error.
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
    """The lab, installed from its wheel into an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheel = build(folder / "dist")
        self.bin = environment(folder / "venv", self.wheel)

    def run(self, *command: str) -> str:
        """Run a program of the environment outside of the checkout, and return its output."""
        return call([str(self.bin / command[0]), *command[1:]], self.folder, self.bin)


def environment(folder: Path, wheel: Path) -> Path:
    """Create an environment with a wheel, in which the checkout is hidden.

    It has the packages of this environment, too.

    Returns:
        The folder of its programs.
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
    """Build the wheel from a copy of the checkout, which is not changed, and return its path."""
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
    """Run a command in a folder, which is also its home, and return its standard output.

    Args:
        command: The command.
        folder: The folder.
        programs: A folder of programs that is first in PATH, or None.
    """
    environment = dict(os.environ)
    for name in ("PYTHONPATH", "LABKIT_DATA"):
        environment.pop(name, None)
    # The front ends of widgets, which are installed in this environment only.
    environment["JUPYTER_PATH"] = str(Path(sys.prefix, "share", "jupyter"))
    environment |= dict.fromkeys(("HOME", "USERPROFILE"), str(folder))
    if programs is not None:
        environment["PATH"] = os.pathsep.join([str(programs), environment["PATH"]])
    limit = 200 * slowness()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The lab in an environment in a folder whose name has a blank."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the lab is not known here")
    return Installed(tmp_path_factory.mktemp("far away"))


pytestmark = pytest.mark.timeout(600 * slowness())


def test_wheel_has_data_and_notebooks_inside_of_the_package(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    files = [*ROOT.glob("data/**/*.*"), *ROOT.glob("notebooks/*.ipynb")]
    expected = {f"labkit/{path.relative_to(ROOT).as_posix()}" for path in files}
    assert expected - set(names) == set()


def test_wheel_has_no_file_twice(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert sorted(set(names)) == sorted(names)


def test_wheel_has_no_tests_and_no_folders_beside_the_packages(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    others = ("tests", "data", "notebooks", "docs")
    assert [name for name in names if name.startswith(others)] == []


def test_wheel_trains_without_a_checkout(installed: Installed) -> None:
    program = f"""
import labkit
from labkit.amp import RECIPES
from labkit.train import TASKS, train
print(labkit.__file__)
try: open({str(ROOT / "README.md")!r})
except OSError as error: print(error)
print([step.loss for step in train(TASKS["digits"], RECIPES["O2"], steps=20).steps])
"""
    file, refusal, losses = installed.run("python", "-c", program).splitlines()
    assert Path(file).is_relative_to(installed.folder / "venv")
    assert "is hidden here" in refusal
    of_checkout = [step.loss for step in train(TASKS["digits"], RECIPES["O2"], steps=20).steps]
    assert losses == str(of_checkout)
    assert of_checkout[-1] < of_checkout[0]


def test_wheel_lets_jupyterlab_save_widgets(installed: Installed) -> None:
    settings = installed.folder / "venv" / "share" / "jupyter" / "lab" / "settings"
    # As any JupyterLab of this environment reads them.
    overrides, error = _get_overrides(str(settings))
    assert error == ""
    assert overrides["@jupyter-widgets/jupyterlab-manager:plugin"]["saveState"] is True


def test_wheel_enables_the_server_extension(installed: Installed) -> None:
    enabled = installed.folder / "venv" / "etc" / "jupyter" / "jupyter_server_config.d"
    extensions = json.loads((enabled / "fp16-lab.json").read_text())["ServerApp"]
    assert extensions == {"jpserver_extensions": {"labkit.machine.jupyter": True}}


def test_a_wheel_of_a_release_has_the_files_of_a_built_one(
    installed: Installed, tmp_path: Path
) -> None:
    """labkit.classroom makes the wheel of a release, and hatchling the built one."""
    name, packed = wheel_of(ROOT, files_of(ROOT, lessons()), labkit.__version__)
    (tmp_path / name).write_bytes(packed)
    built = contents(installed.wheel)
    ours = contents(tmp_path / name)
    information = f"fp16_lab-{labkit.__version__}.dist-info/"
    assert built.keys() == ours.keys()
    differ = {name for name in ours if ours[name] != built[name]}
    assert differ == {f"{information}{name}" for name in ("METADATA", "RECORD", "WHEEL")}
    theirs = email.message_from_bytes(built[f"{information}METADATA"])
    own = email.message_from_bytes(ours[f"{information}METADATA"])
    for field in ("Name", "Version"):
        assert own[field] == theirs[field], field
    assert sorted(own.get_all("Provides-Extra")) == sorted(theirs.get_all("Provides-Extra"))
    assert SpecifierSet(own["Requires-Python"]) == SpecifierSet(theirs["Requires-Python"])
    assert needs(own) == needs(theirs)


def test_the_record_of_a_wheel_quotes_a_comma(tmp_path: Path) -> None:
    files = {"labkit_lessons/lesson_90_own/a,b.csv": b"1"}
    name, packed = wheel_of(ROOT, files, labkit.__version__)
    (tmp_path / name).write_bytes(packed)
    whole = contents(tmp_path / name)
    (record,) = (text for file, text in whole.items() if file.endswith("/RECORD"))
    rows = list(csv.reader(io.StringIO(record.decode())))
    assert {row[0] for row in rows} == set(whole)
    assert {len(row) for row in rows} == {3}


def needs(metadata: Message) -> set[str]:
    """Return the requirements of a wheel, their names as the index has them."""
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    for requirement in requirements:
        requirement.name = canonicalize_name(requirement.name)
    return {str(requirement) for requirement in requirements}


@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel(installed: Installed, tmp_path: Path) -> None:
    """It has the files of the wheel and the pages, without tests and containers."""
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
    names = {
        f"{data}etc/jupyter/jupyter_server_config.d/fp16-lab.json",
        f"{data}share/jupyter/lab/settings/overrides.d/fp16-lab.json",
    }
    of_editable = contents(editable)
    assert {name for name in of_editable if ".data/" in name} == names
    for name in names:
        assert of_editable[name] == built[name]


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
    # The file has a path, and no import hook, which editors do not run.
    assert line.decode().strip() == str(source)
    programs = environment(installed.folder / "venv of an author", editable)
    file, _ = call([str(programs / "python"), "-c", IMPORTS_LESSONS], programs).splitlines()
    assert Path(file) == source / "labkit_lessons" / "lesson_10_clinic" / "__init__.py"
    author = jedi.create_environment(programs.parent, safe=False)
    code = "from labkit_lessons.lesson_10_clinic import "
    completions = jedi.Script(
        code, path=installed.folder / "mine.py", environment=author
    ).complete()
    assert {"CONSULTATIONS", "look", "treat"} <= {each.name for each in completions}


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.mark.slow
def test_check_and_compare_run_without_a_checkout(installed: Installed) -> None:
    report = installed.run("labkit", "check")
    assert re.search(rf" labkit +{re.escape(labkit.__version__)}", report)
    assert "digits read from" in report
    assert "✗" not in report
    comparison = installed.run(
        "labkit", "compare", "digits", "--recipes", "FP32", "O1", "--seeds", "0", "1", "2"
    )
    assert "O1" in comparison
    # Results are saved in the home folder, and not in the package.
    assert (installed.folder / "fp16-lab" / "data" / "runs" / "digits").is_dir()
