"""Wheels from a checkout, without a build: a wheel is a zip archive with a list of its content.

Invariant: the same files give the same bytes, and a wheel holds no file that was not named. Its
files are those of the wheel that a build makes, without what a release leaves out.

Source: PyPA, binary distribution format (wheel 1.0); core metadata 2.1.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from email.message import EmailMessage
from email.policy import EmailPolicy
from pathlib import Path
from typing import Any

import labkit
from labkit.course import PACKAGE, Lesson, learners_notebook, text_of

LEFT_OUT = ("__pycache__", "labkit-answers.jsonl", ".labkit-notebooks.json", ".ipynb_checkpoints")
# Suffixes of files in both packages. A build takes every file that git does not ignore.
SUFFIXES = (".py", ".js", ".css", ".html", ".json", ".toml", ".jinja")
VERSION_FILE = "labkit/__init__.py"
# The date of all files, so that each release has the same bytes.
DATE = (2020, 1, 1, 0, 0, 0)


def files_of(top: Path, course: Sequence[Lesson] = ()) -> dict[str, bytes]:
    """Return the files of a wheel of this checkout: code, data and the course.

    Args:
        top: the checkout.
        course: lessons of the course; those outside of the checkout come with their notebooks.

    Returns:
        Name in the wheel -> content.
    """
    names = {path: path.relative_to(top).as_posix() for path in _packages(top)}
    for path in [*(top / "data").rglob("*"), *(top / "notebooks").glob("*.ipynb")]:
        names[path] = f"labkit/{path.relative_to(top).as_posix()}"
    for lesson in course:
        for path in lesson.folder.rglob("*"):
            names[path] = f"{folder_of(lesson)}/{path.relative_to(lesson.folder).as_posix()}"
    content = {}
    for path in sorted(names):
        if path.is_file() and not any(part in LEFT_OUT for part in path.parts):
            content[names[path]] = path.read_bytes()
    for lesson in course:
        name = f"labkit/notebooks/{lesson.name}.ipynb"
        if name not in content:
            content[name] = text_of(learners_notebook(lesson)).encode()
    return content


def _packages(top: Path) -> Iterator[Path]:
    """Yield the files of both packages: modules, and what they read."""
    for package in ("labkit", PACKAGE):
        for path in (top / package).rglob("*"):
            if path.suffix in SUFFIXES or path.name == "py.typed":
                yield path


def _pyproject(top: Path) -> dict[str, Any]:
    return tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))


def folder_of(lesson: Lesson) -> str:
    """Return the path of a lesson's folder in a wheel."""
    return f"{PACKAGE}/{lesson.folder.name}"


def whole_content(top: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return all files of a wheel, with the lab's version in place of the wheel's own.

    In the names of files beside the packages, STEM is in place of the wheel's name and version.
    Two wheels that differ only in their version have the same content.
    """
    return {**files, **_information(top, labkit.__version__)}


def wheel_of(top: Path, files: Mapping[str, bytes], version: str) -> tuple[str, bytes]:
    """Return the name and the bytes of a wheel of these files; the lab in it has this version.

    >>> from labkit.records import checkout
    >>> wheel_of(checkout(), {}, "0.3.0+class.20261126.1530.g8c3df78b")[0]
    'fp16_lab-0.3.0+class.20261126.1530.g8c3df78b-py3-none-any.whl'
    """
    distribution = _pyproject(top)["project"]["name"].replace("-", "_")
    stem = f"{distribution}-{version}"
    whole = dict(files)
    for name, content in _information(top, version).items():
        whole[name.replace("STEM", stem)] = content
    if VERSION_FILE in whole:
        whole[VERSION_FILE] = _stamped(whole[VERSION_FILE], version)
    record = f"{stem}.dist-info/RECORD"
    text = io.StringIO()
    # names with a comma are quoted
    lines = csv.writer(text, lineterminator="\n")
    for name, content in whole.items():
        lines.writerow([name, f"sha256={_digest(content)}", len(content)])
    # the record lists itself, without a digest
    lines.writerow([record, "", ""])
    whole[record] = text.getvalue().encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in whole.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), content, zipfile.ZIP_DEFLATED)
    return f"{stem}-py3-none-any.whl", packed.getvalue()


def _information(top: Path, version: str) -> dict[str, bytes]:
    """Return the files of a wheel beside its packages.

    In their names, STEM is in place of the wheel's name and version.
    """
    pyproject = _pyproject(top)
    project = pyproject["project"]
    shared = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    tags = "Wheel-Version: 1.0\nGenerator: labkit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    information = {}
    for file, place in shared.items():
        information[f"STEM.data/data/{place}"] = (top / file).read_bytes()
    for file in project["license-files"]:
        information[f"STEM.dist-info/licenses/{file}"] = (top / file).read_bytes()
    information["STEM.dist-info/METADATA"] = _metadata(project, version).encode()
    information["STEM.dist-info/WHEEL"] = tags.encode()
    information["STEM.dist-info/entry_points.txt"] = _entry_points(project).encode()
    return information


def _entry_points(project: Mapping[str, Any]) -> str:
    """Return the text of entry_points.txt: scripts, and the groups that pyproject.toml names."""
    groups = {"console_scripts": project["scripts"], **project.get("entry-points", {})}
    sections = []
    for group, entries in groups.items():
        lines = [f"{name} = {place}" for name, place in entries.items()]
        sections.append("\n".join([f"[{group}]", *lines, ""]))
    return "\n".join(sections)


def _stamped(module: bytes, version: str) -> bytes:
    """Return the source of VERSION_FILE with another version."""
    line = f'__version__ = "{labkit.__version__}"'.encode()
    if module.count(line) != 1:
        raise ValueError(f"expected the line {line.decode()} once in {VERSION_FILE}")
    return module.replace(line, f'__version__ = "{version}"'.encode())


def _metadata(project: Mapping[str, Any], version: str) -> str:
    """Return the metadata of pyproject.toml; requirements of an extra get its marker."""
    # without a line length: readers of metadata take a folded line for two
    message = EmailMessage(EmailPolicy(max_line_length=None, utf8=True))
    fields = [
        ("Metadata-Version", "2.1"),
        ("Name", project["name"]),
        ("Version", version),
        ("Summary", project["description"]),
        ("Requires-Python", project["requires-python"]),
    ]
    fields += [("Requires-Dist", needed) for needed in project["dependencies"]]
    for extra, listed in project["optional-dependencies"].items():
        fields.append(("Provides-Extra", extra))
        fields += [("Requires-Dist", _of_extra(needed, extra)) for needed in listed]
    for name, value in fields:
        message[name] = value
    return message.as_string()


def _of_extra(requirement: str, extra: str) -> str:
    """Return a requirement that applies with this extra only.

    >>> _of_extra("triton>=3.3; platform_system == 'Linux'", "test")
    "triton>=3.3 ; (platform_system == 'Linux') and extra == 'test'"
    """
    needed, _, marker = requirement.partition(";")
    condition = f"({marker.strip()}) and " if marker else ""
    return f"{needed.strip()} ; {condition}extra == '{extra}'"


def _digest(content: bytes) -> str:
    """Return the SHA-256 as a RECORD has it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
