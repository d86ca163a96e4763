"""Draws faults of labkit's code at random.

    python tests/mutants/draw.py SEED COUNT PATH ...

prints rows for faults.toml.

Each fault changes one expression or statement of the source under the paths: a comparison, a
boolean operator, an arithmetic operator, a condition, a number, a truth value, or a call whose
result nobody uses. The draw is uniform over packages first and over their faults second, so that a
large package does not hide a small one.

`tests` is the folder that mirrors the package. Run the rows once, then replace it by the test that
notices each.
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
    """Return whole lines with the node that occur once in the source, and the lines with its
    replacement.
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
    drawn: set[tuple[str, str]] = set()
    choices = {}
    for path in paths:
        if not (ROOT / path).exists():
            parser.error(f"expected a package or a file, relative to {ROOT}, got {path}")
        files = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
        sources = {file: file.read_text(encoding="utf-8") for file in files}
        choices[path] = [
            (file, text, *span)
            for file, text in sources.items()
            for span in spans(ast.parse(text), text)
        ]
        if not choices[path]:
            parser.error(f"expected Python files that have code, got {path}")
    # The paths take turns.
    most = len(paths) * min(map(len, choices.values()))
    if arguments.count > most:
        parser.error(f"expected a count of at most {most}, got {arguments.count}")
    while len(drawn) < arguments.count:
        path = paths[len(drawn) % len(paths)]
        file, source, node, becomes = generator.choice(choices[path])
        was, changed = planted(source, node, becomes)
        if (str(file), changed) in drawn or not parses(source.replace(was, changed)):
            continue
        drawn.add((str(file), changed))
        name = file.relative_to(ROOT).as_posix()
        print(
            f"[[fault]]\nname = 'drawn {seed}.{len(drawn)}: {name}:{node.lineno}'\nfile = '{name}'"
        )
        print(f"was = '''\n{was}'''\nbecomes = '''\n{changed}'''\ntests = ['{mirrored(path)}']\n")


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
