"""The code of a notebook that is run for one exercise.

The cells of the exercise run in their order, however often the cell was copied or split. Before
them run those statements of other cells that bind a name which the answer uses, directly or through
another statement. So helpers and constants count, and a training whose result the answer does not
use is not repeated. A statement may do more than bind names: it fills a table, changes a setting or
writes a file. A whole program has all statements that the learner added. Syntax of IPython becomes
calls, by IPython's own rules.

Invariant: nothing here runs a learner's code; it is parsed at most.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from labkit.course import learners_notebook, lessons
from labkit.grading.exercise import Exercise

_CELL_MAGIC = re.compile(r"\A(\s*)%%(?=time\b|timeit\b|capture\b|prun\b)")
_TIMED = re.compile(r"^([ \t]*|[\w, ]+=[ \t]*)%time[ \t]+(?=\S)", re.MULTILINE)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?")  # as Python's tokenizer splits lines
_MUTATORS = frozenset(
    [
        "append",
        "extend",
        "update",
        "add",
        "insert",
        "setdefault",
        "sort",
        "reverse",
        "remove",
        "discard",
        "pop",
        "clear",
    ]
)
_STAND_INS = {
    "display": "def display(*_, **__): pass",
    "get_ipython": """\
def get_ipython():
    import importlib, os, shlex, sys
    class Shell:
        def __getattr__(self, name):
            return lambda *_, **__: [] if name == 'getoutput' else None
        def run_cell_magic(self, magic, line, cell):
            if magic in ('writefile', 'file'):
                *append, path = shlex.split(line)
                with open(path, 'a' if append else 'w', encoding='utf-8') as file:
                    file.write(cell)
                sys.path.insert(0, os.getcwd())
                importlib.invalidate_caches()
    return Shell()""",
}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# characters of one cell that IPython may read; it reads the cell again for each magic
MAX_TRANSFORMED = 256 << 10


class Unreadable(Exception):
    """A submission or an answer that cannot be graded; the message tells the teacher why."""


class Deleted(Unreadable):
    """No code cell of an exercise, and no answer elsewhere."""


@dataclass(frozen=True)
class CodeCell:
    """A code cell: its id, its tags and its source."""

    id: str
    tags: tuple[str, ...]
    source: str

    def belongs_to(self, exercise: Exercise) -> bool:
        """Return whether the cell belongs to the exercise, by its tag or its id."""
        return exercise.tag in self.tags or self.id == exercise.cell_id


@dataclass(frozen=True)
class Statement:
    """A statement at the top level of a cell, with the global names that it binds and uses.

    Attributes:
        replaces: The names that it binds without using them: not X in X = X + 1.
        is_light: It takes no time: an import, a definition or a constant.
        is_starter: Its body raises NotImplementedError, as the learner's starter does.
        is_star: It is `from ... import *`.
    """

    source: str
    binds: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    replaces: frozenset[str] = frozenset()
    is_light: bool = True
    is_starter: bool = False
    is_star: bool = False


def program_of(cells: Sequence[CodeCell], exercise: Exercise, *, whole: bool = False) -> list[str]:
    """Return the code to run for one exercise.

    The statements of other cells that it needs come first, then its own cells.

    Args:
        cells: The code cells of a notebook, in their order.
        exercise: The exercise to answer.
        whole: Also every statement before the answer that is not one of the lessons'.

    Raises:
        Unreadable: the cell was deleted and its function is nowhere else, or it is not Python.
    """
    answers, before, after = _parts(cells, exercise)
    return [
        *_needed(answers, before, after, exercise, _statements_of_lessons() if whole else None),
        *answers,
    ]


@lru_cache(maxsize=1)
def _statements_of_lessons() -> frozenset[str]:
    """Return the statements of all notebooks that learners are given."""
    cells = (
        cell
        for lesson in lessons()
        for cell in learners_notebook(lesson)["cells"]
        if cell["cell_type"] == "code"
    )
    return frozenset(
        each.source for cell in cells for each in _statements(as_python("".join(cell["source"])))
    )


def answers_to(cells: Sequence[CodeCell], exercise: Exercise) -> str:
    """Return the code of the answer as it is in the notebook, without other cells.

    Returns:
        The code; "" if the notebook has no answer.
    """
    try:
        answers, _, _ = _parts(cells, exercise)
    except Unreadable:
        return ""
    return "\n\n".join(answers)


def which_counts(cells: Iterable[CodeCell], exercise: Exercise) -> str:
    """Return which of several answers counts, as a sentence; "" if only one exists."""
    own = dict.fromkeys(as_python(cell.source) for cell in cells if cell.belongs_to(exercise))
    answers = sum(_answers_in(source, exercise.entry) for source in own)
    return f"{answers} cells answer this exercise: the last one counts" if answers > 1 else ""


def parameters_of(program: Sequence[str], entry: str) -> int | None:
    """Return how many arguments a program's function takes by position.

    Returns:
        The number; None if the program's text does not show it.

    >>> parameters_of(["def f(a, b=1): ..."], "f"), parameters_of(["def f(*a): ..."], "f")
    (2, None)
    """
    found = None
    for source in program:
        for node in [] if _syntax_problem(source) else ast.parse(source).body:
            arguments = None
            if isinstance(node, ast.FunctionDef) and node.name == entry:
                arguments = node.args
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                arguments = node.value.args if entry in names else None
            if arguments is not None:
                count = len(arguments.posonlyargs) + len(arguments.args)
                found = None if arguments.vararg else count
    return found


def defines(cells: Iterable[CodeCell], exercise: Exercise) -> bool:
    """Return whether some cell, of any tag, holds an answer to the exercise besides the starter."""
    return any(
        _answers_in(as_python(cell.source), exercise.entry)
        for cell in cells
        if exercise.entry in cell.source
    )


@lru_cache(maxsize=4096)
def as_python(source: str) -> str:
    r"""Return a cell's source as Python, line for line.

    Magics, shell commands and help requests become calls.

    >>> as_python("x = !ls\nprint?")
    "x = get_ipython().getoutput('ls')\nget_ipython().run_line_magic('pinfo', 'print')"
    """
    source = source.removeprefix("\ufeff")
    if not _syntax_problem(source):
        return source
    source = _TIMED.sub(r"\1", _CELL_MAGIC.sub(r"\1# %%", source))
    blank = source[: len(source) - len(source.lstrip("\n"))]
    try:
        return blank + _transformed(source.lstrip("\n")).rstrip("\n")
    except Exception:  # neither Python nor IPython: reported as a syntax error
        return source


def bare(source: str) -> str:
    r"""Return Python as its syntax tree is written out, without comments and docstrings.

    Text that is not Python is returned unchanged.

    >>> bare('def f(x):\n    "Twice."\n    return 2*x  # is it?') == bare('def f(x): return 2 * x')
    True
    """
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.ClassDef)
                and ast.get_docstring(node) is not None
            ):
                node.body = node.body[1:] or [ast.Pass()]
        return ast.unparse(tree)
    # no Python, or too deep to be written
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source


def _transformed(source: str) -> str:
    """Return a cell transformed by IPython's own rules.

    Raises:
        ValueError: it has too many magics, for each of which IPython reads the cell again.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    class Bounded(TransformerManager):
        def do_token_transforms(self, lines: list[str]) -> list[str]:
            changed = True
            read = 0
            while changed:
                read += sum(map(len, lines))
                if read > MAX_TRANSFORMED:
                    raise ValueError("too many magics")
                changed, lines = self.do_one_token_transform(lines)  # type: ignore[no-untyped-call]
            return lines

    return str(Bounded().transform_cell(source))  # type: ignore[no-untyped-call]


# --- which cells, which statements ---


def _parts(
    cells: Sequence[CodeCell], exercise: Exercise
) -> tuple[list[str], list[Statement], list[Statement]]:
    """Return the cells of the answer, and other cells' statements before and after its last cell.

    A starter is left out if another cell of the exercise holds an answer. If none does, the last
    answer in any other cell is added.
    """
    places = [number for number, cell in enumerate(cells) if cell.belongs_to(exercise)]
    before: list[Statement] = []
    after: list[Statement] = []
    for number, cell in enumerate(cells):
        if number not in places:
            part = before if number < max(places, default=len(cells)) else after
            part += _statements(as_python(cell.source))
    own = dict.fromkeys(as_python(cells[number].source) for number in places)
    problems = [problem for source in own if (problem := _syntax_problem(source))]
    answers = [source for source in own if not _syntax_problem(source)]
    if any(_answers_in(source, exercise.entry) for source in answers):
        defining = [
            s for s in answers if any(exercise.entry in each.binds for each in _statements(s))
        ]
        answers = [s for s in answers if s not in defining or _answers_in(s, exercise.entry)]
    else:
        answers = [] if problems else answers
        answers += [
            s.source for s in [*before, *after] if exercise.entry in s.binds and not s.is_starter
        ][-1:]
    if not answers:
        if problems:
            raise Unreadable(problems[0])
        raise Deleted(
            f"its cell was deleted: no code cell has the tag {exercise.tag} or the id "
            f"{exercise.cell_id}"
        )
    return answers, before, after


def _answers_in(source: str, entry: str) -> bool:
    """Return whether a cell binds the function to anything but the starter."""
    return any(
        entry in statement.binds and not statement.is_starter for statement in _statements(source)
    )


def _needed(
    answers: Sequence[str],
    before: Sequence[Statement],
    after: Sequence[Statement],
    exercise: Exercise,
    known: frozenset[str] | None,
) -> list[str]:
    """Return the statements of other cells that the answer needs, in the order of the notebook.

    What the answer itself uses is needed, however long it takes. Other lines of its cell, such as
    calls to try it out, get definitions and constants only.

    Args:
        answers: The cells of the answer.
        before: Statements of other cells above the answer.
        after: Statements of other cells below it.
        exercise: The exercise to answer.
        known: Also return each statement before the answer that is not one of these; None: no
            others.
    """
    own = [statement for source in answers for statement in _statements(source)]
    bound = frozenset({exercise.entry}).union(exercise.provides, *(s.replaces for s in own))
    inner = _closure({exercise.entry}, own, [], frozenset())
    needed = frozenset[str]().union(*(own[i].uses for i in inner)) - bound
    added = {i for i, s in enumerate(before) if known is not None and s.source not in known}
    wished = (
        frozenset[str]().union(*(s.uses for s in own), *(before[i].uses for i in added)) - bound
    )
    builtin = frozenset(vars(builtins))  # only an earlier cell replaces these
    after = [replace(statement, binds=statement.binds - builtin) for statement in after]
    others = [*before, *after]
    light = [s if s.is_light else Statement("") for s in others]
    early = len(before)
    taken = added | _closure(needed, before, after, bound)
    taken |= _closure(wished - needed, light[:early], light[early:], bound)
    used = needed | wished | frozenset[str]().union(*(others[i].uses for i in taken))
    if used - bound - builtin - frozenset[str]().union(*(others[i].binds for i in taken)):
        # any of them may bind the rest
        taken |= {i for i, statement in enumerate(others) if statement.is_star}
    stand_ins = [text for name, text in _STAND_INS.items() if name in used]
    return stand_ins + [others[i].source for i in sorted(taken)]


def _closure(
    names: Iterable[str],
    before: Sequence[Statement],
    after: Sequence[Statement],
    bound: frozenset[str],
) -> set[int]:
    """Return the statements that bind these names, and those that bind the names which they use.

    Earlier cells take precedence.
    """
    statements = [*before, *after]
    taken: set[int] = set()
    places = defaultdict[str, list[int]](list)
    for i, statement in enumerate(statements):
        for name in statement.binds:
            places[name].append(i)
    resolved: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        resolved.add(name)
        new = set([i for i in places[name] if i < len(before)] or places[name]) - taken
        taken |= new
        waiting |= {used for i in new for used in statements[i].uses} - resolved - bound
    return taken


# --- parsing ---


@lru_cache(maxsize=4096)
def _syntax_problem(source: str) -> str:
    try:
        ast.parse(source)
    except (
        Exception
    ) as error:  # SyntaxError; ValueError, RecursionError, MemoryError for odd or deep sources
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        version = ".".join(map(str, sys.version_info[:2]))
        return f"syntax error{line}: {getattr(error, 'msg', error)} (graded by Python {version})"
    return ""


@lru_cache(maxsize=4096)
def _statements(source: str) -> list[Statement]:
    """Return the statements of a cell as they are written.

    Returns:
        The statements; [] if the cell is not Python, or nested too deeply for Python's parser.
    """
    try:
        body = ast.parse(source).body
        return [
            _statement(node, text) for node, text in zip(body, _texts(source, body), strict=True)
        ]
    except Exception:
        return []


def _statement(node: ast.stmt, text: str) -> Statement:
    binds = frozenset(_bound(node))
    uses = _used(node, text)
    return Statement(
        text,
        binds,
        uses,
        replaces=binds if isinstance(node, _DEFINITIONS) else binds - uses,
        is_light=_is_light(node),
        is_starter=any(_raises_not_implemented(each) for each in getattr(node, "body", ())),
        is_star=isinstance(node, ast.ImportFrom) and node.names[0].name == "*",
    )


def _texts(source: str, body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the text of each statement. Unparsing instead would fail for deep or large ones."""
    lines = [line.encode() for line in _LINE.findall(source)]
    for node in body:
        first = min([node, *getattr(node, "decorator_list", ())], key=lambda part: part.lineno)
        start = first.lineno - 1
        end = (node.end_lineno or node.lineno) - 1
        rows = lines[start : end + 1]
        rows[-1] = rows[-1][: node.end_col_offset]
        # a decorator's node begins after the @
        rows[0] = rows[0][0 if first is not node else node.col_offset :]
        yield b"".join(rows).decode().lstrip()


def _raises_not_implemented(node: object) -> bool:
    raised = node.exc if isinstance(node, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _bound(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds or changes, except those inside of its functions."""
    for node in _outside_functions(statement):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((alias.asname or alias.name).split(".")[0] for alias in names)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                yield from _root(node)
            case ast.Call(func=ast.Attribute(attr=method) as func) if method in _MUTATORS:
                yield from _root(func)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    while waiting:
        yield (each := waiting.pop())
        if not isinstance(each, (*_DEFINITIONS, ast.Lambda, ast.comprehension)):
            waiting += ast.iter_child_nodes(each)


def _root(node: ast.AST) -> Iterator[str]:
    """Yield the name before all dots and brackets: TABLE of TABLE[3].x."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _used(statement: ast.stmt, text: str) -> frozenset[str]:
    """Return the global names that a statement uses, without the local variables of functions."""
    try:
        waiting = [symtable.symtable(text, "cell", "exec")]
        names: set[str] = set()
        while waiting:
            scope = waiting.pop()
            waiting += scope.get_children()
            is_top = scope.get_type() == "module"
            names |= {
                s.get_name()
                for s in scope.get_symbols()
                if (s.is_referenced() if is_top else s.is_global())
            }
        return frozenset(names)
    # an await in a comprehension at the top level, or deeper than the compiler goes
    except Exception:
        return frozenset(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


def _is_light(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        return not any(
            isinstance(node, (ast.Call, ast.Await)) for node in _outside_functions(statement.value)
        )
    return isinstance(statement, (*_DEFINITIONS, ast.Import, ast.ImportFrom))
