"""Constants in source code that FP16 cannot hold: numbers that are 0 or inf there.

Idea: a number matters where it meets a tensor: as a summand, a mask, a limit of clamp, or the
epsilon of a layer or a division. The source is parsed, never run. A name that is assigned one
number only is read as that number.

Invariant: arguments of an optimizer or a schedule (lr, eps, weight_decay) are not reported, nor is
the code of torch, of the lab, or of an installed package.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from labkit.formats import BF16, FP16, round_to

FILLED = {
    "masked_fill",
    "masked_fill_",
    "full",
    "full_like",
    "new_full",
    "fill",
    "fill_",
    "where",
    "clamp",
    "clamp_",
    "clip",
    "clamp_min",
    "clamp_min_",
    "clamp_max",
    "clamp_max_",
    "maximum",
    "minimum",
}
KEYWORDS = {"eps", "epsilon", "min", "max", "value", "fill_value"}
# A call with one of these creates an optimizer or a schedule.
OF_OPTIMIZERS = {"lr", "betas", "weight_decay", "momentum"}
# These modules are judged like a user's: their faults are written as users write them.
FAULTS = str(Path(__file__).parents[1] / "faults")
NOT_THE_USERS = (
    str(Path(__file__).parents[1]),
    str(Path(inspect.__file__).parent),
    str(Path(torch.__file__).parent),
)


@dataclass(frozen=True)
class Constant:
    """A number that FP16 cannot hold: its place in the source, its expression and its value."""

    file: str
    line: int
    text: str
    value: float

    @property
    def where(self) -> str:
        """File and line, in the form of `line_of_user`."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def says(self) -> str:
        """Its value in each format of 16 bits."""
        fp16, bf16 = (float(round_to(self.value, format)) for format in (FP16, BF16))
        return f"`{self.text}`: {self.value:g} is {fp16:g} in FP16, and {bf16:.4g} in BF16"


def misfit(value: float) -> bool:
    """Return whether FP16 rounds a number to 0 or inf that is neither.

    >>> [misfit(value) for value in (1e-8, 1e-6, -1e9, 65504, math.inf, 0)]
    [True, False, True, False, False, False]
    """
    return 0 < abs(value) <= FP16.smallest_subnormal / 2 or FP16.max < abs(value) < math.inf


def constants_in(
    source: str, file: str = "", first: int = 1, names: dict[str, float] | None = None
) -> list[Constant]:
    """Return the constants of a source text that FP16 cannot hold.

    `names` are the values of names from outside the text.

    >>> [c.says for c in constants_in("p = torch.log(x + 1e-8)")]
    ['`x + 1e-08`: 1e-08 is 0 in FP16, and 1.001e-08 in BF16']
    >>> constants_in("optimizer = Adam(model.parameters(), lr=1e-3, eps=1e-8)")
    []
    """
    tree = ast.parse(source)
    reader = _Reader(_constant_names(tree) | (names or {}))
    reader.visit(tree)
    return [
        Constant(file, node.lineno + first - 1, ast.unparse(node), value)
        for node, value in reader.found
    ]


def _constant_names(tree: ast.AST) -> dict[str, float]:
    """Return the names that are assigned one number only, as a value or a default."""
    assigned: dict[str, set[float | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, set()).add(_number(node.value, {}))
        elif isinstance(node, ast.arguments):
            arguments = [*node.posonlyargs, *node.args]
            pairs = list(
                zip(arguments[len(arguments) - len(node.defaults) :], node.defaults, strict=True)
            )
            for argument, default in pairs + list(
                zip(node.kwonlyargs, node.kw_defaults, strict=True)
            ):
                assigned.setdefault(argument.arg, set()).add(_number(default, {}))
    single = {name: values.pop() for name, values in assigned.items() if len(values) == 1}
    return {name: value for name, value in single.items() if value is not None}


def _number(node: ast.AST | None, names: dict[str, float]) -> float | None:
    """Return the value of an expression, if it follows without running it."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return float(node.value)
    if isinstance(node, ast.Name | ast.Attribute):
        return names.get(node.id if isinstance(node, ast.Name) else node.attr)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand, names)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base = _number(node.left, names)
        exponent = _number(node.right, names)
        with suppress(OverflowError, ZeroDivisionError):
            return None if base is None or exponent is None or base <= 0 else base**exponent
    return None


class _Reader(ast.NodeVisitor):
    """Finds the numbers that meet a tensor."""

    def __init__(self, names: dict[str, float]) -> None:
        self.names = names
        self.found: list[tuple[ast.expr, float]] = []

    def _look(self, node: ast.expr, *meeting: ast.expr | None) -> None:
        values = [value for each in meeting if (value := _number(each, self.names)) is not None]
        self.found += [(node, value) for value in values if misfit(value)][:1]

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Look at sums, and at products with what a mask is made of: a large negative number."""
        self.generic_visit(node)
        sides = [node.left, node.right]
        numbers = [value for side in sides if (value := _number(side, self.names)) is not None]
        of_a_mask = isinstance(node.op, ast.Mult) and min(numbers, default=0.0) < -FP16.max
        if len(numbers) == 1 and (of_a_mask or isinstance(node.op, ast.Add | ast.Sub)):
            self._look(node, *sides)

    def visit_Call(self, node: ast.Call) -> None:
        """Look at what tensors are filled with and kept between, and at the epsilons of layers."""
        self.generic_visit(node)
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if not (
            hasattr(torch.optim, name) or OF_OPTIMIZERS & {keyword.arg for keyword in node.keywords}
        ):
            self._look(
                node, *(keyword.value for keyword in node.keywords if keyword.arg in KEYWORDS)
            )
        if name in FILLED:
            self._look(node, *node.args)


def constants_of(step: Callable[..., Any], model: nn.Module | None) -> list[Constant]:
    """Return the constants that do not fit, in the code a step reaches and in a model's classes."""
    found: dict[tuple[str, int], Constant] = {}
    for thing, names in _reachable(
        [step, *({type(m) for m in model.modules()} if model is not None else ())]
    ):
        # code without a source: typed in, compiled, a lambda
        with suppress(OSError, TypeError, SyntaxError):
            lines, first = inspect.getsourcelines(thing)
            text = textwrap.dedent("".join(lines))
            for constant in constants_in(text, inspect.getsourcefile(thing) or "", first, names):
                found.setdefault((constant.file, constant.line), constant)
    return sorted(found.values(), key=lambda constant: (constant.file, constant.line))


def _reachable(begin: Iterable[Any]) -> Iterator[tuple[Any, dict[str, float]]]:
    """Yield the user's functions and classes that can be reached, each with its named numbers."""
    todo = list(begin)
    known = set[int]()
    while todo:
        thing = _plain(todo.pop())
        if thing is None or id(thing) in known or not _is_user_code(thing):
            continue
        known.add(id(thing))
        members = vars(thing).values() if isinstance(thing, type) else [thing]
        functions = [each for each in members if isinstance(each, FunctionType)]
        used = {name: value for function in functions for name, value in _used(function)}
        todo += used.values()
        yield thing, {n: float(v) for n, v in used.items() if type(v) in (int, float)}


def _plain(thing: Any) -> Any:
    """Return the function or class behind a value; None behind what is neither."""
    if isinstance(thing, functools.partial | MethodType):
        return _plain(thing.func if isinstance(thing, functools.partial) else thing.__func__)
    if isinstance(thing, nn.Module):
        return type(thing)
    return thing if isinstance(thing, FunctionType | type) else None


def _is_user_code(thing: Any) -> bool:
    try:
        file = inspect.getsourcefile(thing) or ""
    except (TypeError, OSError):
        # a class of Python's own, or one that was typed in
        return False
    return file.startswith(FAULTS) or not (
        file.startswith(NOT_THE_USERS) or "site-packages" in file
    )


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names that a function takes from around it, each with its value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # a cell without a value raises
        with suppress(ValueError):
            yield name, cell.cell_contents
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> set[str]:
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)
