"""Wheels from a checkout, without a build: a wheel is a zip archive with a list of its content.

Invariant: the same files give the same bytes, and a wheel holds no file that was not named.

Source: PyPA, binary distribution format (wheel 1.0); core metadata 2.4.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import labkit
from labkit.course import Lesson, learners_notebook, text_of
from labkit.records import write_atomic

SUFFIXES = (".py", ".js", ".css", ".toml", ".json")
LEFT_OUT = ("__pycache__", "labkit-answers.jsonl", ".labkit-notebooks.json", ".ipynb_checkpoints")


def files_of(top: Path, course: Sequence[Lesson] = ()) -> dict[str, bytes]:
    """Return name in the package -> content of a wheel of this checkout: code, data and the course.

    course   its lessons; those outside of the checkout come with their notebooks
    """
    found = {
        path: f"labkit/{path.relative_to(top / 'labkit').as_posix()}"
        for path in (top / "labkit").rglob("*")
    }
    found = {path: name for path, name in found.items() if path.suffix in SUFFIXES}
    for path in [*(top / "data").rglob("*"), *(top / "notebooks").glob("*.ipynb")]:
        found[path] = f"labkit/{path.relative_to(top).as_posix()}"
    for lesson in course:
        for path in lesson.folder.rglob("*"):
            found[path] = f"{folder_of(lesson)}/{path.relative_to(lesson.folder).as_posix()}"
    included = [
        path
        for path in sorted(found)
        if path.is_file() and not any(part in LEFT_OUT for part in path.parts)
    ]
    content = {found[path]: path.read_bytes() for path in included}
    for lesson in course:
        name = f"labkit/notebooks/{lesson.name}.ipynb"
        if name not in content:
            content[name] = text_of(learners_notebook(lesson)).encode()
    return content


def folder_of(lesson: Lesson) -> str:
    """Return the path of a lesson's folder in the package."""
    return f"labkit/notebooks/lessons/{lesson.folder.name}"


def write_wheel(top: Path, files: Mapping[str, bytes], folder: Path) -> Path:
    """Write these files as a wheel into a folder, atomically; return its path."""
    project: dict[str, Any] = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    stem = f"{project['name'].replace('-', '_')}-{labkit.__version__}"
    info = f"{stem}.dist-info"
    scripts = "".join(f"{name} = {place}\n" for name, place in project["scripts"].items())
    tags = "Wheel-Version: 1.0\nGenerator: labkit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    more = {
        "METADATA": _metadata(project),
        "WHEEL": tags,
        "entry_points.txt": f"[console_scripts]\n{scripts}",
    }
    whole = {**files, **{f"{info}/{name}": text.encode() for name, text in more.items()}}
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in whole.items()]
    whole[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in whole.items():
            archive.writestr(
                zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED
            )
    return write_atomic(folder / f"{stem}-py3-none-any.whl", packed.getvalue())


def _metadata(project: Mapping[str, Any]) -> str:
    """Return the metadata of pyproject.toml, with the marker of an extra after each of its requirements."""
    message = EmailMessage()
    fields = [
        ("Metadata-Version", "2.1"),
        ("Name", project["name"]),
        ("Version", labkit.__version__),
    ]
    fields += [("Summary", project["description"]), ("Requires-Python", project["requires-python"])]
    fields += [("Requires-Dist", needed) for needed in project["dependencies"]]
    fields.append(("Provides-Extra", "lab"))
    fields += [
        ("Requires-Dist", f"{n} ; extra == 'lab'") for n in project["optional-dependencies"]["lab"]
    ]
    for name, value in fields:
        message[name] = value
    return message.as_string()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
