"""A random draw of faults of labkit's code, printed as rows for faults.toml.

    python tests/mutants/draw.py SEED COUNT PATH ...

Each fault changes one expression or statement of the source under the paths: a comparison, a
boolean operator, an arithmetic operator, a condition, a number, a truth value, or a call whose
result nobody uses. The paths take turns, so that a large package does not hide a small one. All
faults of a path are equally likely, and none is drawn twice.

The `tests` of a row is the folder that mirrors its path. Run the rows once, then replace it by the
test that notices the fault.
"""

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMPARED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
COMPUTED = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Pow: "*",
}


def spans(tree: ast.Module, source: str) -> Iterator[tuple[Any, str]]:
    """Yield each node that can be replaced, with its replacement."""
    ignored = {id(part) for node in ast.walk(tree) for part in annotations(node)}

    def text(node: ast.AST) -> str:
        return ast.get_source_segment(source, node) or ""

    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                yield node, f"{text(left)} {COMPARED[type(op)]} {text(right)}"
            case ast.BoolOp(values=[first, *rest]):
                word = " or " if isinstance(node.op, ast.And) else " and "
                yield node, "(" + word.join(f"({text(value)})" for value in (first, *rest)) + ")"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, f"bool({text(operand)})"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED:
                yield node, f"(({text(left)}) {COMPUTED[type(op)]} ({text(right)}))"
            case ast.Constant(value=bool()):
                yield node, str(not node.value)
            case ast.Constant(value=int() | float()):
                yield node, f"({node.value!r} + 1)"
            case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(
                test, ast.Compare | ast.BoolOp
            ):
                yield test, f"(not ({text(test)}))"
            case ast.Expr(value=ast.Call()):
                yield node, "pass"


def annotations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes in which no fault is planted.

    They are annotations and blocks of TYPE_CHECKING, which are not run, and the parts of f-strings,
    which have no place of their own in the source.
    """
    for name in ("annotation", "returns"):
        if (part := getattr(node, name, None)) is not None:
            yield from ast.walk(part)
    if isinstance(node, ast.JoinedStr):
        yield from list(ast.walk(node))[1:]
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        yield from ast.walk(node)


def planted(source: str, node: ast.expr | ast.stmt, becomes: str) -> tuple[str, str]:
    """Return whole lines with the node, and the same lines with its replacement.

    The lines occur once in the source.
    """
    lines = source.splitlines(keepends=True)
    first = node.lineno - 1
    last = (node.end_lineno or node.lineno) - 1
    was = "".join(lines[first : last + 1])
    start = len(lines[first].encode()[: node.col_offset].decode())
    end = len(was) - len(lines[last]) + len(lines[last].encode()[: node.end_col_offset].decode())
    changed = was[:start] + becomes + was[end:]
    while source.count(was) != 1 and first > 0:
        first -= 1
        was = lines[first] + was
        changed = lines[first] + changed
    return was, changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, help="how many faults to draw")
    parser.add_argument("paths", nargs="+", metavar="path", help="a package or a file of labkit")
    arguments = parser.parse_args()
    seed = arguments.seed
    paths = arguments.paths
    generator = random.Random(seed)
    draws = {}
    for path in paths:
        if not (ROOT / path).exists():
            parser.error(f"expected a package or a file, relative to {ROOT}, got {path}")
        draws[path] = drawn(path, generator)
    rows: list[str] = []
    while len(rows) < arguments.count:
        path = paths[len(rows) % len(paths)]
        fault = next(draws[path], None)
        if fault is None:
            parser.error(f"expected a count of at most {len(rows)}: {path} has no further fault")
        name, line, was, becomes = fault
        rows.append(
            f"[[fault]]\nname = 'drawn {seed}.{len(rows) + 1}: {name}:{line}'\nfile = '{name}'\n"
            f"was = '''\n{was}'''\nbecomes = '''\n{becomes}'''\ntests = ['{mirrored(path)}']\n"
        )
    print("\n".join(rows))


def drawn(path: str, generator: random.Random) -> Iterator[tuple[str, int, str, str]]:
    """Yield the faults of a path in random order: file, line, the lines that were and become."""
    files = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
    choices = []
    for file in files:
        source = file.read_text(encoding="utf-8")
        choices += [(file, source, *span) for span in spans(ast.parse(source), source)]
    generator.shuffle(choices)
    # Two changes of a condition may be the same.
    seen: set[tuple[Path, str, str]] = set()
    for file, source, node, replacement in choices:
        was, becomes = planted(source, node, replacement)
        if (file, was, becomes) not in seen and parses(source.replace(was, becomes)):
            seen.add((file, was, becomes))
            yield file.relative_to(ROOT).as_posix(), node.lineno, was, becomes


def parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def mirrored(path: str) -> str:
    """Return the folder of a package's tests: that of its name, or the nearest one above it."""
    folder = Path("tests", *Path(path).with_suffix("").parts[1:])
    return next(each for each in (folder, *folder.parents) if (ROOT / each).is_dir()).as_posix()


if __name__ == "__main__":
    main()
