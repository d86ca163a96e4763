"""Submissions: the notebooks that learners hand in, their code cells, and their lessons.

Invariant: this module runs no learner's code, and follows no link out of a learner's submission.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from labkit.course import Lesson, lessons
from labkit.grading.exercises import EXERCISES
from labkit.grading.program import CodeCell, Unreadable

# The largest notebook.
MAX_BYTES = 64 << 20
# The most characters of code, tags and ids in a notebook. A solved lesson has 60,000.
MAX_CODE = 1 << 20
# The most values in the JSON of a notebook, each of which takes up to 100 bytes of memory.
MAX_VALUES = 2_000_000
# The deepest nesting of folders.
MAX_DEPTH = 20
CANVAS = re.compile(r"(?P<who>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_(?P<file>.+)")
MOODLE = re.compile(r"(?P<who>.+)_(?P<number>\d+)_assignsubmission_[a-z]+_?(?P<file>.*)")
BLACKBOARD = re.compile(
    r"(?P<heads>.+)_attempt_\d{4}(?:-\d\d){5}(?:_(?P<file>.+)|\.txt)?", re.IGNORECASE
)
# Some browsers add a second suffix.
NOTEBOOKS = (".ipynb", ".ipynb.txt", ".ipynb.json")
# Tables and logs beside submissions. They belong to no learner, unless the school's system named
# them after one.
NOBODYS = (".csv", ".tsv", ".jsonl", ".log", ".ini", ".db", ".lock", ".part", ".kept")
_SUFFIX = re.compile(r"(?:\.tar)?\.\w{1,8}$")
# In the head of each page that labkit writes.
GENERATOR = b'<meta name="generator" content="labkit">'
# The most files that a sentence names, before "and 5 more".
NAMED_FILES = 3


@dataclass(frozen=True)
class Submission:
    """One notebook of one student. It is read when its content is first used.

    Attributes:
        student: The name of the student.
        notebook: The name of the notebook, as it was handed in.
        path: The file; None if the student handed in no notebook, or it could not be unpacked.
        own: The student's folder or the notebook itself, which links must not leave. None for a
            file that the caller named.
        refused: The reason why it cannot be graded, if known before it is opened.
    """

    student: str
    notebook: str
    path: Path | None
    own: Path | None = None
    refused: str = ""

    @cached_property
    def _content(self) -> tuple[tuple[CodeCell, ...], str, tuple[CodeCell, ...]]:
        try:
            code, others = _read_cells(self)
            return tuple(code), "", tuple(others)
        except Unreadable as error:
            return (), str(error), ()
        # A notebook can hold anything, and the grading of the class continues.
        except Exception as error:
            return (), f"it cannot be read: {type(error).__name__}: {str(error)[:100]}", ()

    @property
    def cells(self) -> tuple[CodeCell, ...]:
        """The code cells; empty if the notebook has a problem."""
        return self._content[0]

    @property
    def problem(self) -> str:
        """The reason why the notebook cannot be graded, or ""."""
        return self._content[1]

    @property
    def other_cells(self) -> tuple[CodeCell, ...]:
        """The other cells, without their sources. One of them may have been a code cell."""
        return self._content[2]

    @cached_property
    def lessons(self) -> Counter[str]:
        """For each lesson, the number of its exercises that have a cell in the notebook."""
        counts: Counter[str] = Counter()
        for exercise in EXERCISES.values():
            if any(cell.belongs_to(exercise) for cell in self.cells):
                counts[exercise.lesson] += 1
        return counts

    @cached_property
    def lesson(self) -> str | None:
        """The lesson of most exercises in the notebook, else the lesson of its name, else None."""
        is_other_file = not self.path and not self.notebook.lower().endswith(NOTEBOOKS)
        if self.notebook and is_other_file:
            return None
        name = _stem(Path(self.notebook).name)
        if self.lessons:
            lesson, count = self.lessons.most_common(1)[0]
            # Among lessons with equally many exercises, the name decides.
            return name if self.lessons.get(name) == count else lesson
        known = {exercise.lesson for exercise in EXERCISES.values()}
        return name if name in known else None


def find(
    paths: Iterable[Path],
    refused: Mapping[Path, str] | None = None,
    results: Collection[Path] = (),
) -> list[Submission]:
    """Return the submissions in files and folders, in order of name.

    Accepted are single files, <folder>/<student>.ipynb and <folder>/<student>/.../<lesson>.ipynb.
    Names from Canvas, Moodle and Blackboard are parsed, and so is the name of a lesson after that
    of a student. Checkpoints, hidden files and macOS's additions to archives (__MACOSX) are
    ignored. A student with other files and no notebook has one submission, whose reason names the
    files.

    Args:
        paths: Files and folders that learners handed in.
        refused: For each file that could not be unpacked from an archive, the reason, which its
            student's rows will have.
        results: Files and folders of the grading itself, which may lie beside the students'.

    Raises:
        FileNotFoundError: If a path does not exist, or no path has a notebook.
        ValueError: If a single file is not a notebook.
    """
    submissions: list[Submission] = []
    # Files of students that are not notebooks.
    others: dict[str, list[str]] = {}
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}; give a folder of notebooks, or notebooks")
        refused_here = {
            file.relative_to(path): reason
            for file, reason in (refused or {}).items()
            if path in file.parents
        }
        assignment = ""
        if path.is_dir():
            names = [entry.name for entry in path.iterdir()]
            names += [file.parts[0] for file in refused_here]
            assignment = assignment_in(names)
            submissions += _in_folder(path, assignment, others, results)
        elif path.name.lower().endswith(NOTEBOOKS):
            submissions.append(_of_file(path, path.name))
        else:
            raise ValueError(
                f"expected notebooks (.ipynb), folders of them or zip archives, got {path}"
            )
        for file, reason in refused_here.items():
            student, name = learner_in(file.parts[0], assignment)
            notebook = "/".join(file.parts[1:]) or name
            submissions.append(Submission(student, notebook, None, refused=reason))
    if not submissions:
        raise FileNotFoundError(_nothing(others))
    with_notebook = {one.student for one in submissions}
    for student, names in others.items():
        if student not in with_notebook:
            reason = _other_files(names)
            submissions.append(Submission(student, _enumerated(names), None, refused=reason))
    return submissions


def nobodys_files(paths: Iterable[Path]) -> list[str]:
    """Return the names of the tables, logs and READMEs beside the students' files."""
    folders = [path for path in paths if path.is_dir()]
    entries = [entry for folder in folders for entry in sorted(folder.iterdir())]
    return [
        entry.name
        for entry in entries
        if is_nobodys(entry.name) and not _is_hidden(entry.name) and not _is_folder(entry)
    ]


def _nothing(others: Mapping[str, Sequence[str]]) -> str:
    """Return a sentence about submissions without a single notebook."""
    if not others:
        return "there is no notebook (.ipynb) in what was handed in, and no file of a learner"
    student, names = next(iter(others.items()))
    return (
        f"no notebook (.ipynb) in what {len(others)} learners handed in: is it the right folder? "
        f"The first one, {student}, handed in {_enumerated(names) or 'no readable file'}"
    )


def _other_files(names: Sequence[str]) -> str:
    """Return the reason why a student without a notebook has no points."""
    if not names:
        return "handed in a folder or an archive without any readable file: no notebook (.ipynb)"
    archives = (".rar", ".7z", ".gz", ".tgz", ".tar", ".xz", ".bz2")
    advice = "; a zip archive can be unpacked" if names[0].lower().endswith(archives) else ""
    return f"handed in {_enumerated(names)}: no notebook (.ipynb){advice}"


def _enumerated(names: Sequence[str]) -> str:
    text = ", ".join(names[:NAMED_FILES])
    if len(names) > NAMED_FILES:
        text += f" and {len(names) - NAMED_FILES} more"
    return text


def hard_linked(submissions: Iterable[Submission]) -> list[list[Submission]]:
    """Return groups of students whose submissions are hard links to one file."""
    by_file: dict[tuple[int, int], list[Submission]] = {}
    for one in submissions:
        if one.path is None:
            continue
        try:
            status = one.path.lstat()
        except OSError:
            continue
        if status.st_nlink > 1:
            by_file.setdefault((status.st_dev, status.st_ino), []).append(one)
    return [group for group in by_file.values() if len({one.student for one in group}) > 1]


def learner_in(name: str, assignment: str = "") -> tuple[str, str]:
    """Return the student and the file's name in a name that Canvas, Moodle or Blackboard wrote.

    Args:
        name: The name of a file or a folder.
        assignment: The prefix that Blackboard writes before each student; see `assignment_in`.

    >>> learner_in("lovelaceada_LATE_12345_678901_06_loss_scaling-1.ipynb")
    ('lovelaceada_12345', '06_loss_scaling-1.ipynb')
    >>> learner_in("Ada Lovelace_1234567_assignsubmission_file_")
    ('Ada Lovelace_1234567', '')
    >>> learner_in("Lab 6_ada_attempt_2026-11-27-10-15-30_06_loss_scaling.ipynb")
    ('ada', '06_loss_scaling.ipynb')
    >>> learner_in("ada_06_loss_scaling.ipynb")
    ('ada', '06_loss_scaling.ipynb')
    >>> learner_in("ada.ipynb")
    ('ada', 'ada.ipynb')
    """
    match = MOODLE.fullmatch(name) or CANVAS.fullmatch(name)
    if match:
        return f"{match['who']}_{match['number']}", match["file"]
    match = BLACKBOARD.fullmatch(name)
    if match:
        heads = match["heads"]
        who = heads.removeprefix(assignment) if assignment else heads.rpartition("_")[2]
        return who or heads, match["file"] or ""
    match = _before_a_lesson(lessons()).fullmatch(name)
    if match:
        return match["who"], match["file"]
    return _stem(name), name


def assignment_in(names: Iterable[str]) -> str:
    """Return the prefix that Blackboard wrote before the students in some names, as "Lab_6_".

    It is "" for a single student.

    >>> assignment_in(f"Lab_6_{who}_attempt_2026-11-27-10-15-30.txt" for who in ("ada_l", "bob"))
    'Lab_6_'
    """
    matches = (BLACKBOARD.fullmatch(name) for name in names)
    heads = {match["heads"] for match in matches if match}
    if len(heads) < 2:
        return ""
    # The last part belongs to the student's name.
    parts_of_heads = [head.split("_")[:-1] for head in heads]
    prefix = ""
    for parts in zip(*parts_of_heads, strict=False):
        if len(set(parts)) > 1:
            break
        prefix += f"{parts[0]}_"
    return prefix


@lru_cache(maxsize=1)
def _before_a_lesson(course: tuple[Lesson, ...]) -> re.Pattern[str]:
    """Return the pattern of a learner's name before that of a lesson: ada_06_loss_scaling.ipynb."""
    names = "|".join(re.escape(lesson.name) for lesson in course) or "(?!)"
    return re.compile(
        rf"(?P<who>.*[^\W_].*?)[-_ .]+(?P<file>(?:{names})(?![^\W_]).*)", re.IGNORECASE
    )


def _stem(name: str) -> str:
    """Return the name of a notebook without its suffix, and any other name as it is."""
    for suffix in NOTEBOOKS:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def is_nobodys(name: str) -> bool:
    """Return whether a file beside the learners' is a table, a log or a README."""
    if MOODLE.fullmatch(name) or CANVAS.fullmatch(name) or BLACKBOARD.fullmatch(name):
        return False
    return name.lower().endswith(NOBODYS) or name.partition(".")[0].lower() == "readme"


def is_result(entry: Path) -> bool:
    """Return whether an earlier grading wrote this file or folder.

    It writes pages, folders of pages, and anonymised classes.
    """
    if not _is_folder(entry):
        return _is_page(entry)
    if (entry.parent / f"{entry.name}-key.csv").is_file():
        return True
    files = files_in(entry, "")
    if not files:
        return False
    # A learner's own folder may hold an earlier feedback page, and nothing else.
    return all(_is_page(file) and file.name != "feedback.html" for file in files)


def _is_page(path: Path) -> bool:
    """Return whether a file is a page that `labkit grade` wrote, by its head."""
    if path.suffix != ".html":
        return False
    try:
        return GENERATOR in content_of(path, None)[:400]
    except Unreadable:
        return False


def _of_file(path: Path, name: str, own: Path | None = None, assignment: str = "") -> Submission:
    student, file = learner_in(name, assignment)
    return Submission(student, file, path, own)


def _in_folder(
    folder: Path, assignment: str, others: dict[str, list[str]], results: Collection[Path]
) -> Iterator[Submission]:
    """Yield the notebooks in a folder of students, and add all other files to `others`.

    Archives beside the students' folders are unpacked before, into folders of their own
    (labkit.classroom.archives).
    """
    real = folder.resolve()
    own_results = {path.resolve() for path in results}
    for entry in sorted(folder.iterdir()):
        if _is_hidden(entry.name) or real / entry.name in own_results or is_result(entry):
            continue
        own = real / entry.name
        if _is_folder(entry):
            student, _ = learner_in(entry.name, assignment)
            files = [path.relative_to(entry).as_posix() for path in files_in(entry, "")]
            notebooks = [file for file in files if file.lower().endswith(NOTEBOOKS)]
            yield from (Submission(student, file, entry / file, own) for file in notebooks)
            if not notebooks:
                work = [file for file in files if not _is_page(entry / file)]
                others.setdefault(student, []).extend(work)
        elif entry.name.lower().endswith(NOTEBOOKS):
            yield _of_file(entry, entry.name, own, assignment)
        elif not is_nobodys(entry.name) and not entry.name.lower().endswith(".zip"):
            student, file = learner_in(entry.name, assignment)
            if file == entry.name:
                student = _SUFFIX.sub("", file)
            others.setdefault(student, []).append(file or entry.name)


def _is_folder(entry: Path) -> bool:
    try:
        return entry.is_dir()
    # The folder that contains it can be listed, but not entered.
    except OSError:
        return not entry.name.lower().endswith(NOTEBOOKS)


def files_in(folder: Path, suffix: str) -> list[Path]:
    """Return the files below a folder with this suffix, in any case and not hidden, in order.

    Links to folders are not followed. Folders deeper than MAX_DEPTH and unreadable ones are
    ignored.
    """
    files = []
    waiting = [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        try:
            entries = [entry for entry in os.scandir(place) if not _is_hidden(entry.name)]
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    waiting.append((place / entry.name, depth + 1))
            elif entry.name.lower().endswith(suffix):
                files.append(place / entry.name)
    return sorted(files)


def content_of(path: Path, own: Path | None, most: int = MAX_BYTES) -> bytes:
    """Return the content of a file that a learner handed in.

    Args:
        path: The file.
        own: The learner's folder, resolved. The file may be a link within it. None allows any
            file.
        most: The largest size in bytes.

    Raises:
        Unreadable: If the file is not regular, is too large, or is a link out of the folder.
    """
    try:
        real = path.resolve(strict=True)
        if own is not None and not real.is_relative_to(own):
            raise Unreadable(
                "it is a link to something outside of what its learner handed in: hand in the "
                "file itself"
            )
        # A pipe without a writer would block. Not every system has each of these flags.
        flags = os.O_RDONLY
        for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY"):
            flags |= getattr(os, name, 0)
        with os.fdopen(os.open(real, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable("it is not a regular file")
            if status.st_size > most:
                raise Unreadable(f"it is larger than {most >> 20} MiB")
            # The path could have become a link between the two calls.
            if own is not None and path.resolve(strict=True) != real:
                raise Unreadable("it changed while it was opened")
            return file.read(most)
    # Before Python 3.13, a link that leads to itself raises RuntimeError.
    except RuntimeError as error:
        raise Unreadable("it is a link that leads nowhere") from error
    except OSError as error:
        raise Unreadable(f"it cannot be opened: {error.strerror}") from error


def is_own(path: Path, own: Path | None) -> bool:
    """Return whether a file can be read and belongs to the learner."""
    try:
        content_of(path, own)
    except Unreadable:
        return False
    return True


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _read_cells(submission: Submission) -> tuple[list[CodeCell], list[CodeCell]]:
    """Return the code cells of a notebook, and its other cells without their text.

    Raises:
        Unreadable: If the file is not a notebook, or has no code.
    """
    if submission.path is None or submission.refused:
        raise Unreadable(submission.refused or "no notebook was handed in")
    try:
        content = content_of(submission.path, submission.own)
        if sum(map(content.count, (b",", b"{", b"["))) > MAX_VALUES:
            raise Unreadable(
                f"more than {MAX_VALUES:,} values: clear the outputs of its cells, and hand it "
                "in again"
            )
        notebook = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not a notebook: its text is not JSON ({str(error)[:100]})") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("not a notebook: it has no list of cells (expected nbformat 4)")
    cells = [cell for cell in cells if isinstance(cell, dict)]
    code = [_cell(cell) for cell in cells if cell.get("cell_type") == "code"]
    others = [_cell(cell | {"source": ""}) for cell in cells if cell.get("cell_type") != "code"]
    # Many empty cells are too large, too.
    size = sum(
        100 + len(cell.source) + len(cell.id) + sum(map(len, cell.tags))
        for cell in [*code, *others]
    )
    if size > MAX_CODE:
        raise Unreadable(
            f"more code than a lesson takes: {MAX_CODE >> 20} MiB in all cells together is read"
        )
    if not any(cell.source.strip() for cell in code):
        raise Unreadable("empty notebook: no cell holds any code")
    return code, others


def _cell(cell: dict[str, object]) -> CodeCell:
    metadata = cell.get("metadata")
    source = cell.get("source")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    lines = source if isinstance(source, list) else [source]
    return CodeCell(
        id=str(cell.get("id", "")),
        tags=tuple(str(tag) for tag in tags) if isinstance(tags, list) else (),
        source="".join(line for line in lines if isinstance(line, str)),
    )
