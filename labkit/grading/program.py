"""The part of a notebook's code that runs for one exercise.

The cells of the exercise run in their order, even if a learner copied or split a cell. Statements
of other cells run before them if they bind a name that the answer uses, directly or through another
statement. So helpers and constants count, and a training is not repeated unless the answer uses its
result. A statement can do more than bind names: it can fill a table, change a setting or write a
file. Therefore a *whole* program has every statement that the learner added. IPython syntax becomes
calls, by IPython's own rules.

Invariant: this module parses learners' code and never runs it.
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
# Lines as Python's tokenizer splits them; str.splitlines splits at other characters, too.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?")
# Methods that change their object.
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
# Replacements for functions that IPython provides, as source, for programs that use them.
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
# The most characters of one cell that IPython may read; it reads the cell again for each magic.
MAX_TRANSFORMED = 256 << 10


class Unreadable(Exception):
    """A submission or an answer cannot be graded. The message tells the teacher why."""


class Deleted(Unreadable):
    """A notebook has no code cell of an exercise, and no answer in another cell."""


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
    """A statement at the top level of a cell.

    Attributes:
        source: The text of the statement.
        binds: The global names that it binds or changes.
        uses: The global names that it uses.
        replaces: The names that it binds without using them. X = X + 1 does not replace X.
        is_light: Whether it takes no time: an import, a definition or a constant.
        is_starter: Whether its body raises NotImplementedError, as a learner's starter does.
        is_star: Whether it is `from ... import *`.
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
        whole: Whether to include every statement before the answer that the learner added.

    Raises:
        Unreadable: If the answer's cell was deleted and no other cell has the function, or if the
            cell is not Python.
    """
    answers, before, after = _parts(cells, exercise)
    known = _statements_of_lessons() if whole else None
    return _needed(answers, before, after, exercise, known) + answers


@lru_cache(maxsize=1)
def _statements_of_lessons() -> frozenset[str]:
    """Return the statements of all notebooks that learners receive."""
    sources: set[str] = set()
    for lesson in lessons():
        for cell in learners_notebook(lesson)["cells"]:
            if cell["cell_type"] == "code":
                source = as_python("".join(cell["source"]))
                sources.update(statement.source for statement in _statements(source))
    return frozenset(sources)


def answers_to(cells: Sequence[CodeCell], exercise: Exercise) -> str:
    """Return the code of the answer's own cells, or "" if the notebook has no answer."""
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
    """Return how many arguments a function of a program takes by position.

    Args:
        program: The program's cells, as `program_of` returns them.
        entry: The name of the function.

    Returns:
        The number of arguments, or None if the text does not state it.

    >>> parameters_of(["def f(a, b=1): ..."], "f"), parameters_of(["def f(*a): ..."], "f")
    (2, None)
    """
    # The last definition counts.
    count = None
    for source in program:
        if _syntax_problem(source):
            continue
        for node in ast.parse(source).body:
            arguments = _arguments_of(node, entry)
            if arguments is None:
                continue
            if arguments.vararg:
                count = None
            else:
                count = len(arguments.posonlyargs) + len(arguments.args)
    return count


def _arguments_of(node: ast.stmt, entry: str) -> ast.arguments | None:
    """Return the arguments of a function that a statement defines by def or lambda."""
    if isinstance(node, ast.FunctionDef) and node.name == entry:
        return node.args
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if entry in names:
            return node.value.args
    return None


def defines(cells: Iterable[CodeCell], exercise: Exercise) -> bool:
    """Return whether any cell, with or without the tag, holds an answer besides the starter."""
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
    # The cell is neither Python nor IPython, which is reported as a syntax error later.
    except Exception:
        return source


def bare(source: str) -> str:
    r"""Return Python source in a normal form, without comments and docstrings.

    Text that is not Python is returned unchanged.

    >>> bare('def f(x):\n    "Twice."\n    return 2*x  # is it?') == bare('def f(x): return 2 * x')
    True
    >>> bare('async def f():\n    "Once."\n    return 1') == bare('async def f(): return 1')
    True
    """
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, _DEFINITIONS) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return ast.unparse(tree)
    # The text is not Python, or is nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source


def _transformed(source: str) -> str:
    """Return a cell transformed by IPython's own rules.

    Raises:
        ValueError: If the cell has too many magics: IPython reads the cell again for each.
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


# --- selection of cells and statements ---


def _parts(
    cells: Sequence[CodeCell], exercise: Exercise
) -> tuple[list[str], list[Statement], list[Statement]]:
    """Return the answer's cells, and the statements of other cells before and after the last one.

    Raises:
        Unreadable: If the notebook has no answer.
    """
    entry = exercise.entry
    places = [number for number, cell in enumerate(cells) if cell.belongs_to(exercise)]
    last = max(places, default=len(cells))
    before: list[Statement] = []
    after: list[Statement] = []
    for number, cell in enumerate(cells):
        if number in places:
            continue
        statements = _statements(as_python(cell.source))
        if number < last:
            before += statements
        else:
            after += statements

    # A copied cell counts once.
    own = dict.fromkeys(as_python(cells[number].source) for number in places)
    problems = [_syntax_problem(source) for source in own if _syntax_problem(source)]
    answers = [source for source in own if not _syntax_problem(source)]
    if any(_answers_in(source, entry) for source in answers):
        # Leave out cells that define nothing but the starter.
        answers = [
            source for source in answers if _answers_in(source, entry) or not _binds(source, entry)
        ]
    else:
        if problems:
            answers = []
        # The last answer in any other cell counts.
        elsewhere = [
            statement.source
            for statement in [*before, *after]
            if entry in statement.binds and not statement.is_starter
        ]
        answers += elsewhere[-1:]
    if not answers:
        if problems:
            raise Unreadable(problems[0])
        raise Deleted(
            f"its cell was deleted: no code cell has the tag {exercise.tag} or the id "
            f"{exercise.cell_id}"
        )
    return answers, before, after


def _binds(source: str, name: str) -> bool:
    return any(name in statement.binds for statement in _statements(source))


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

    A name that the answer itself uses is required: every statement that binds it runs, however long
    it takes. A name that only other lines of its cell use, such as a call to try it out, is
    optional: statements that bind it run only if they are light.

    Args:
        answers: The cells of the answer.
        before: Statements of other cells above the answer.
        after: Statements of other cells below it.
        exercise: The exercise to answer.
        known: The statements of the lessons. All statements before the answer that are not among
            them run, too. None adds no statements.
    """
    own = [statement for source in answers for statement in _statements(source)]
    bound = frozenset({exercise.entry, *exercise.provides}) | _union(s.replaces for s in own)
    # A later cell does not replace a builtin for an earlier one.
    builtin = frozenset(vars(builtins))
    after = [replace(statement, binds=statement.binds - builtin) for statement in after]
    others = [*before, *after]
    added = set[int]()
    if known is not None:
        added = {i for i, statement in enumerate(before) if statement.source not in known}

    entry_statements = _closure({exercise.entry}, own, [], frozenset())
    required = _union(own[i].uses for i in entry_statements) - bound
    optional = _union(s.uses for s in own) | _union(before[i].uses for i in added)
    optional -= bound | required

    selected = added | _closure(required, before, after, bound)
    # Empty statements take the places of slow ones, so that the indices stay those of `others`.
    light = [statement if statement.is_light else Statement("") for statement in others]
    selected |= _closure(optional, light[: len(before)], light[len(before) :], bound)

    used = required | optional | _union(others[i].uses for i in selected)
    unbound = used - bound - builtin - _union(others[i].binds for i in selected)
    if unbound:
        # Any star import can bind these names.
        selected |= {i for i, statement in enumerate(others) if statement.is_star}
    stand_ins = [text for name, text in _STAND_INS.items() if name in used]
    return stand_ins + [others[i].source for i in sorted(selected)]


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def _closure(
    names: Iterable[str],
    before: Sequence[Statement],
    after: Sequence[Statement],
    bound: frozenset[str],
) -> set[int]:
    """Return the statements that bind some names, and those that bind the names they use in turn.

    Args:
        names: The names to start from.
        before: Statements above the answer, which take precedence.
        after: Statements below the answer.
        bound: Names that are not looked up.

    Returns:
        Indices into the statements before and after, counted through.
    """
    statements = [*before, *after]
    binders = defaultdict[str, list[int]](list)
    for i, statement in enumerate(statements):
        for name in statement.binds:
            binders[name].append(i)
    selected: set[int] = set()
    resolved: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        resolved.add(name)
        earlier = [i for i in binders[name] if i < len(before)]
        new = set(earlier or binders[name]) - selected
        selected |= new
        waiting |= _union(statements[i].uses for i in new) - resolved - bound
    return selected


# --- parsing ---


@lru_cache(maxsize=4096)
def _syntax_problem(source: str) -> str:
    try:
        ast.parse(source)
    # SyntaxError, or ValueError, RecursionError and MemoryError for odd or deeply nested sources.
    except Exception as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        version = ".".join(map(str, sys.version_info[:2]))
        return f"syntax error{line}: {getattr(error, 'msg', error)} (graded by Python {version})"
    return ""


@lru_cache(maxsize=4096)
def _statements(source: str) -> list[Statement]:
    """Return the statements of a cell, or [] if Python's parser cannot read it."""
    try:
        body = ast.parse(source).body
        texts = _texts(source, body)
        return [_statement(node, text) for node, text in zip(body, texts, strict=True)]
    # See `_syntax_problem`.
    except Exception:
        return []


def _statement(node: ast.stmt, text: str) -> Statement:
    binds = frozenset(_bound(node))
    uses = _used(node, text) | frozenset(_updated(node))
    # A recursive function uses its own name without needing an earlier value of it.
    replaces = binds if isinstance(node, _DEFINITIONS) else binds - uses
    return Statement(
        text,
        binds,
        uses,
        replaces=replaces,
        is_light=_is_light(node),
        is_starter=any(_raises_not_implemented(each) for each in getattr(node, "body", ())),
        is_star=isinstance(node, ast.ImportFrom) and node.names[0].name == "*",
    )


def _texts(source: str, body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the text of each statement.

    ast.unparse would fail for statements that are nested too deeply. Columns in the tree are
    counted in bytes of UTF-8.
    """
    lines = [line.encode() for line in _LINE.findall(source)]
    for node in body:
        decorators = getattr(node, "decorator_list", [])
        start = min(part.lineno for part in [node, *decorators]) - 1
        end = (node.end_lineno or node.lineno) - 1
        rows = lines[start : end + 1]
        rows[-1] = rows[-1][: node.end_col_offset]
        # A decorator's node begins after its @, so its line is kept whole.
        if not decorators:
            rows[0] = rows[0][node.col_offset :]
        yield b"".join(rows).decode().lstrip()


def _raises_not_implemented(node: object) -> bool:
    if not isinstance(node, ast.Raise):
        return False
    error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(error, ast.Name) and error.id == "NotImplementedError"


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
            # the patterns of a match statement; those without a name, such as _, bind none
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                yield name
            case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                yield from _root(node)
            case ast.Call(func=ast.Attribute(attr=method) as func) if method in _MUTATORS:
                yield from _root(func)


def _updated(statement: ast.AST) -> Iterator[str]:
    """Yield the names before `+=` and its kin, which symtable does not count as used.

    Those inside of functions are left out.
    """
    for node in _outside_functions(statement):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and its descendants, except those with a scope of their own."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        if not isinstance(current, (*_DEFINITIONS, ast.Lambda, ast.comprehension)):
            waiting += ast.iter_child_nodes(current)


def _root(node: ast.AST) -> Iterator[str]:
    """Yield the name before all dots and brackets: TABLE for TABLE[3].x."""
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
            for symbol in scope.get_symbols():
                # At the top level, every name that is read is global.
                is_used = symbol.is_referenced() if is_top else symbol.is_global()
                if is_used:
                    names.add(symbol.get_name())
        return frozenset(names)
    # An await in a comprehension at the top level, or nesting too deep for the compiler.
    except Exception:
        return frozenset(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


def _is_light(statement: ast.stmt) -> bool:
    """Return whether a statement is an import, a definition, or an assignment without a call."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        return not any(
            isinstance(node, (ast.Call, ast.Await)) for node in _outside_functions(statement.value)
        )
    return isinstance(statement, (*_DEFINITIONS, ast.Import, ast.ImportFrom))
