"""Which code of a notebook is run for one exercise?

Idea: what "Run All" would leave for it, and no more. The cells of the exercise run in their order, however often the
cell was copied or split. Before them run the statements of other cells that bind a name which the answer uses, directly
or through another statement. So a helper, a constant or a table from another cell counts, and a training or a widget
whose result the answer does not use does not run again. Lines for IPython become calls, by IPython's own rules.

Invariant: nothing in here runs a learner's code; it is parsed at most.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from labkit.grading.exercise import Exercise
from labkit.grading.submission import Cell, Unreadable, is_of

_CELL_MAGIC = re.compile(r"\A(\s*)%%(?=time\b|timeit\b|capture\b|prun\b)")
_TIMED = re.compile(r"^([ \t]*|[\w, ]+=[ \t]*)%time[ \t]+(?=\S)", re.MULTILINE)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?")  # as Python's tokenizer cuts them
_CHANGES = frozenset("append extend update add insert setdefault sort reverse remove discard pop clear".split())
_STAND_INS = {
    "display": "def display(*_, **__): pass",
    "get_ipython": (
        "def get_ipython():\n    class Shell:\n        def __getattr__(self, name):\n"
        "            return lambda *_, **__: [] if name == 'getoutput' else None\n    return Shell()"
    ),
}
_BUILT_IN = frozenset(vars(builtins))
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAX_TRANSFORMED = 256 << 10  # characters that IPython may read of one cell, which it reads anew for each magic


@dataclass(frozen=True)
class _Statement:
    """A statement at the top of a cell: the names that it binds or changes, and the global names that it uses.

    light       it takes no time: an import, a definition or a constant
    definition  it is a function or a class
    starter     it is what the learner found: its body raises NotImplementedError
    star        it is `from ... import *`
    """

    source: str
    binds: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    light: bool = True
    definition: bool = False
    starter: bool = False
    star: bool = False

    @property
    def defines(self) -> frozenset[str]:
        """Return the names that it binds anew: not those that it changes, nor X in X = X + 1."""
        return self.binds if self.definition else self.binds - self.uses


def program_of(cells: Sequence[Cell], exercise: Exercise) -> list[str]:
    """Return the code to run for one exercise: the statements that it needs of other cells, then its own cells.

    An own cell that is still the starter is left out where another one holds an answer. Where none does, the answer is
    looked for in the other cells.

    Raises:
        Unreadable: the cell is gone and its function is nowhere else, or it is not Python.
    """
    places = [number for number, cell in enumerate(cells) if is_of(cell, exercise)]
    sources = list(dict.fromkeys(as_python(cells[number].source) for number in places))
    answers, problems = _answers(sources, exercise.entry)
    before, after = _around(cells, places)
    if not any(_answered(_statements(source), exercise.entry) for source in answers):
        answers += [statement.source for statement in _answered([*before, *after], exercise.entry)[-1:]]
    if not answers and problems:
        raise Unreadable(problems[0])
    if not answers:
        raise Unreadable(f"its cell was deleted: no code cell has the tag {exercise.tag} or the id {exercise.cell_id}")
    own = [statement for source in answers for statement in _statements(source)]
    return [*_needed(own, before, after, exercise), *answers]


@lru_cache(maxsize=4096)
def as_python(source: str) -> str:
    """Return a cell's source as Python: magics, shell commands and questions are calls; lines keep their numbers.

    >>> as_python("x = !ls\\nprint?")
    "x = get_ipython().getoutput('ls')\\nget_ipython().run_line_magic('pinfo', 'print')"
    """
    source = source.removeprefix("\ufeff")
    if not _syntax_problem(source):
        return source
    source = _TIMED.sub(r"\1", _CELL_MAGIC.sub(r"\1# %%", source))
    blank = source[: len(source) - len(source.lstrip("\n"))]
    try:
        return blank + _transformed(source.lstrip("\n")).rstrip("\n")
    except Exception:  # what IPython cannot take apart is no Python either, and will be called so
        return source


def _transformed(source: str) -> str:
    """Return a cell by IPython's own rules.

    Raises:
        ValueError: it has so many magics that IPython, which reads the cell anew for each, would not come to an end.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    class Bounded(TransformerManager):
        def do_token_transforms(self, lines: list[str]) -> list[str]:
            changed, read = True, 0
            while changed:
                read += sum(map(len, lines))
                if read > MAX_TRANSFORMED:
                    raise ValueError("too many magics")
                changed, lines = self.do_one_token_transform(lines)  # type: ignore[no-untyped-call]
            return lines

    return str(Bounded().transform_cell(source))  # type: ignore[no-untyped-call]


def defines(cells: Iterable[Cell], exercise: Exercise) -> bool:
    """Return whether some cell, of any tag, holds an answer to the exercise that is not the starter."""
    sources = [as_python(cell.source) for cell in cells if exercise.entry in cell.source]
    return any(_answered(_statements(source), exercise.entry) for source in sources)


def _answers(sources: Sequence[str], entry: str) -> tuple[list[str], list[str]]:
    """Return the own cells that run, without starters where one is solved; and what is wrong with the others."""
    problems = {source: problem for source in sources if (problem := _syntax_problem(source))}
    sound = [source for source in sources if source not in problems]
    solved = [s for s in sound if not _binds(_statements(s), entry) or _answered(_statements(s), entry)]
    answered = any(_answered(_statements(source), entry) for source in solved)
    if problems and not answered:
        return [], list(problems.values())
    return solved if answered else sound, list(problems.values())


@lru_cache(maxsize=4096)
def _syntax_problem(source: str) -> str:
    try:
        ast.parse(source)
    except Exception as error:  # SyntaxError, or ValueError, RecursionError, MemoryError of what is too deep or too odd
        at = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        return f"syntax error{at}: {getattr(error, 'msg', error)}"
    return ""


def _binds(statements: Sequence[_Statement], name: str) -> list[_Statement]:
    return [statement for statement in statements if name in statement.binds]


def _answered(statements: Sequence[_Statement], entry: str) -> list[_Statement]:
    """Return the statements that bind the function to something else than what the learner found."""
    return [statement for statement in _binds(statements, entry) if not statement.starter]


def _around(cells: Sequence[Cell], places: Sequence[int]) -> tuple[list[_Statement], list[_Statement]]:
    """Return the statements of the cells before the exercise's last one, and of those after it."""
    last = max(places, default=len(cells))
    parts = [
        [cell for i, cell in enumerate(cells) if i not in places and (i < last) is early] for early in (True, False)
    ]
    before, after = ([s for cell in part for s in _statements(as_python(cell.source))] for part in parts)
    return before, after


def _needed(
    own: Sequence[_Statement], before: Sequence[_Statement], after: Sequence[_Statement], exercise: Exercise
) -> list[str]:
    """Return the statements of other cells that the answer needs, in the order of the notebook.

    What the answer itself uses is needed whatever it takes. What else stands in its cell, calls to try it out for
    instance, gets definitions and constants only.
    """
    bound = frozenset({exercise.entry}).union(_BUILT_IN, exercise.provides, *(s.defines for s in own))
    answer = _closure({exercise.entry}, own, [], frozenset())
    needed = frozenset[str]().union(*(own[i].uses for i in answer)) - bound
    wished = frozenset[str]().union(*(s.uses for s in own)) - bound
    others = [*before, *after]
    light = [s if s.light else _Statement("") for s in others]
    early = len(before)
    taken = _closure(needed, others[:early], others[early:], bound)
    taken |= _closure(wished - needed, light[:early], light[early:], bound)
    used = needed | wished | frozenset[str]().union(*(others[i].uses for i in taken))
    stars = _stars(others) if used - frozenset[str]().union(*(others[i].binds for i in taken)) - bound else set()
    stand_ins = [text for name, text in _STAND_INS.items() if name in used]
    return stand_ins + [others[i].source for i in sorted(taken | stars)]


def _closure(
    names: Iterable[str], before: Sequence[_Statement], after: Sequence[_Statement], bound: frozenset[str]
) -> set[int]:
    """Return which statements bind these names, and the names that they use in turn; earlier cells go first."""
    statements, taken = [*before, *after], set[int]()
    places = defaultdict[str, list[int]](list)
    for i, statement in enumerate(statements):
        for name in statement.binds:
            places[name].append(i)
    asked, waiting = set[str](), set(names)
    while waiting:
        name = waiting.pop()
        asked.add(name)
        early = [i for i in places[name] if i < len(before)]
        new = set(early or places[name]) - taken
        taken |= new
        waiting |= {used for i in new for used in statements[i].uses} - asked - bound
    return taken


def _stars(statements: Sequence[_Statement]) -> set[int]:
    """Return the star imports: any of them may bind a name that nothing else does."""
    return {i for i, s in enumerate(statements) if s.star}


@lru_cache(maxsize=4096)
def _statements(source: str) -> list[_Statement]:
    """Return the statements of a cell as they are written; none where it is not Python, or Python gives up on it."""
    try:
        body = ast.parse(source).body
        return [_statement(node, text) for node, text in zip(body, _texts(source, body), strict=True)]
    except Exception:
        return []


def _statement(node: ast.stmt, text: str) -> _Statement:
    return _Statement(
        text, frozenset(_bound(node)), _used(node, text), _is_light(node), isinstance(node, _DEFINITIONS),
        any(_is_unanswered(each) for each in getattr(node, "body", ())),
        isinstance(node, ast.ImportFrom) and node.names[0].name == "*",
    )  # fmt: skip


def _texts(source: str, body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the text of each statement. What was parsed is not written anew: that fails where it is deep or large."""
    lines = [line.encode() for line in _LINE.findall(source)]
    for node in body:
        first = min([node, *getattr(node, "decorator_list", ())], key=lambda part: part.lineno)
        start, end = first.lineno - 1, (node.end_lineno or node.lineno) - 1
        rows = lines[start : end + 1]
        rows[-1] = rows[-1][: node.end_col_offset]
        rows[0] = rows[0][0 if first is not node else node.col_offset :]  # the @ stands before the decorator
        yield b"".join(rows).decode().lstrip()


def _is_unanswered(node: object) -> bool:
    """Return whether a statement is `raise NotImplementedError`, called or not."""
    raised = node.exc if isinstance(node, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _bound(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds or changes, wherever in it, but not those inside of its functions."""
    for node in _outside_functions(statement):
        if isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield from _root(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            yield from _root(node.func)


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
    """Return the global names that a statement uses; a function's own variables are none."""
    try:
        table = symtable.symtable(text, "cell", "exec")
    except Exception:  # an await at the top, in a comprehension; or deeper than the compiler goes
        return frozenset(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
    names = {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    return frozenset(names | {s.get_name() for scope in _scopes(table) for s in scope.get_symbols() if s.is_global()})


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    waiting = table.get_children()
    while waiting:
        yield (each := waiting.pop())
        waiting += each.get_children()


def _is_light(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        return not any(isinstance(node, (ast.Call, ast.Await)) for node in _outside_functions(statement.value))
    return isinstance(statement, (*_DEFINITIONS, ast.Import, ast.ImportFrom))
