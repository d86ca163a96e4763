"""Constants in source code that FP16 cannot hold: numbers that are 0 or inf there.

Idea: a number matters where it meets a tensor: as a summand, a mask, a limit of clamp, or the
epsilon of a layer or a division. The source is parsed, never run. A name that is assigned only one
number is taken for that number.

Invariant: arguments of an optimizer or a schedule (lr, eps, weight_decay) are not reported, nor is
the code of torch, of the lab, or of an installed package.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from labkit.formats import BF16, FP16, round_to

# functions that fill a tensor with a number, keep it between two, or add one in place
TAKING_NUMBERS = {
    "add_",
    "sub_",
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
# keywords by which a call is taken for the creation of an optimizer or a schedule
OF_OPTIMIZERS = {"lr", "betas", "weight_decay", "momentum"}
# the lab's known faults, which are written as users write code, and are examined like theirs
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
        """The file's name and the line, as "train.py:12"."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def says(self) -> str:
        """A sentence with its value in FP16 and in BF16."""
        fp16 = float(round_to(self.value, FP16))
        bf16 = float(round_to(self.value, BF16))
        return f"`{self.text}`: {self.value:g} is {fp16:g} in FP16, and {bf16:.4g} in BF16"


def misfit(value: float) -> bool:
    """Return whether a number is neither 0 nor inf, and FP16 rounds it to one of them.

    >>> [misfit(value) for value in (1e-8, 1e-6, -1e9, 65519, math.inf, 0)]
    [True, False, True, False, False, False]
    """
    if value == 0 or not math.isfinite(value):
        return False
    rounded = float(round_to(float(value), FP16))
    return rounded == 0 or math.isinf(rounded)


def constants_in(
    source: str, file: str = "", first: int = 1, names: dict[str, float] | None = None
) -> list[Constant]:
    """Return the constants of a source text that FP16 cannot hold.

    Args:
        source: Python code.
        file: the file that it comes from.
        first: the number of its first line in that file.
        names: values of names that are defined outside the text.

    Raises:
        SyntaxError: source is not Python code.

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
    # None in a set: the name is also assigned something else than a number
    assigned: dict[str, set[float | None]] = defaultdict(set)
    # names whose value follows from one statement; others are assigned by a loop, a pair, or +=
    simple: set[ast.Name] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                # without a value, an annotation assigns nothing
                if isinstance(target, ast.Name):
                    simple.add(target)
                    if node.value is not None:
                        assigned[target.id].add(_number(node.value, {}))
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            # defaults are those of the last positional arguments
            with_default = positional[len(positional) - len(node.defaults) :]
            for argument, default in zip(with_default, node.defaults, strict=True):
                assigned[argument.arg].add(_number(default, {}))
            for argument, keyword_default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                assigned[argument.arg].add(_number(keyword_default, {}))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in simple:
            assigned[node.id].add(None)
    constants = {}
    for name, values in assigned.items():
        value = values.pop()
        if not values and value is not None:
            constants[name] = value
    return constants


def _number(node: ast.AST | None, names: dict[str, float]) -> float | None:
    """Return the value of an expression, if it follows without running it."""
    if isinstance(node, ast.Constant):
        # a bool is an int, too
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return _as_float(node.value)
        return None
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return names.get(node.attr)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand, names)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base = _number(node.left, names)
        exponent = _number(node.right, names)
        if base is None or exponent is None or base <= 0:
            return None
        with suppress(OverflowError):
            return math.pow(base, exponent)
    return None


def _as_float(number: float) -> float | None:
    """Return a number as a float; None for a whole number that is beyond all floats."""
    try:
        return float(number)
    except OverflowError:
        return None


class _Reader(ast.NodeVisitor):
    """Finds the numbers that meet a tensor."""

    def __init__(self, names: dict[str, float]) -> None:
        self.names = names
        self.found: list[tuple[ast.expr | ast.Assign | ast.AugAssign, float]] = []

    def _look(self, node: ast.expr, *meeting: ast.expr | None) -> None:
        """Record an expression with the first number that does not fit."""
        for each in meeting:
            value = _number(each, self.names)
            if value is not None and misfit(value):
                self.found.append((node, value))
                return

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Look at sums, and at products with a large negative number, of which masks are made."""
        self.generic_visit(node)
        left = _number(node.left, self.names)
        right = _number(node.right, self.names)
        # of two numbers neither is a tensor
        if left is not None and right is not None:
            return
        if isinstance(node.op, ast.Mult):
            number = right if left is None else left
            if number is not None and number < -FP16.max:
                self._look(node, node.left, node.right)
        elif isinstance(node.op, ast.Add | ast.Sub):
            self._look(node, node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Look at sums in place (+=, -=), and at products with a large negative number (*=)."""
        self.generic_visit(node)
        number = _number(node.value, self.names)
        if number is None or not misfit(number):
            return
        is_sum = isinstance(node.op, ast.Add | ast.Sub)
        is_mask = isinstance(node.op, ast.Mult) and number < -FP16.max
        if is_sum or is_mask:
            self.found.append((node, number))

    def visit_Assign(self, node: ast.Assign) -> None:
        """Look at large negative numbers that are assigned to a part of a tensor, as a mask is."""
        self.generic_visit(node)
        number = _number(node.value, self.names)
        if number is None or number >= -FP16.max:
            return
        indices = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
        if any(map(_is_index_of_tensors, indices)):
            self.found.append((node, number))

    def visit_Call(self, node: ast.Call) -> None:
        """Look at numbers that tensors are filled with or kept between, and at layers' epsilons."""
        self.generic_visit(node)
        name = ""
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
        elif isinstance(node.func, ast.Name):
            name = node.func.id
        keywords = {keyword.arg for keyword in node.keywords}
        if not (hasattr(torch.optim, name) or OF_OPTIMIZERS & keywords):
            values = [keyword.value for keyword in node.keywords if keyword.arg in KEYWORDS]
            self._look(node, *values)
        if name in TAKING_NUMBERS:
            self._look(node, *node.args)
        position = _position_of_eps(name)
        if position is not None:
            self._look(node, *node.args[position : position + 1])


def _is_index_of_tensors(index: ast.expr) -> bool:
    """Return whether an index selects a part of a tensor, and not an entry of a dict or a list.

    A slice, a comparison and `~` do; so does what is called a mask.

    >>> [_is_index_of_tensors(ast.parse(text, mode="eval").body) for text in ("mask", "name")]
    [True, False]
    """
    if "mask" in ast.unparse(index).lower():
        return True
    return any(isinstance(each, ast.Slice | ast.Compare | ast.Invert) for each in ast.walk(index))


@functools.cache
def _position_of_eps(name: str) -> int | None:
    """Return the position of `eps` among the arguments of a function or layer of torch.

    >>> _position_of_eps("normalize"), _position_of_eps("LayerNorm"), _position_of_eps("Linear")
    (3, 1, None)
    """
    for module in (nn.functional, nn):
        with suppress(AttributeError, TypeError, ValueError):
            arguments = list(inspect.signature(getattr(module, name)).parameters)
            if "eps" in arguments:
                return arguments.index("eps")
    return None


def constants_of(step: Callable[..., Any], model: nn.Module | None) -> list[Constant]:
    """Return the constants that do not fit, in the code a step reaches and in a model's classes."""
    starts: list[Any] = [step]
    if model is not None:
        starts += {type(module) for module in model.modules()}
    found: dict[tuple[str, int], Constant] = {}
    for thing, names in _reachable(starts):
        # some code has no source that can be parsed: typed in, compiled, or a lambda in a call
        with suppress(OSError, TypeError, SyntaxError):
            lines, first = inspect.getsourcelines(thing)
            text = textwrap.dedent("".join(lines))
            for constant in constants_in(text, inspect.getsourcefile(thing) or "", first, names):
                found.setdefault((constant.file, constant.line), constant)
    return sorted(found.values(), key=lambda constant: (constant.file, constant.line))


def _reachable(starts: Iterable[Any]) -> Iterator[tuple[Any, dict[str, float]]]:
    """Yield the user's functions and classes that can be reached, each with its named numbers."""
    todo = list(starts)
    known = set[int]()
    while todo:
        thing = _plain(todo.pop())
        if thing is None or id(thing) in known or not _is_user_code(thing):
            continue
        known.add(id(thing))
        members = vars(thing).values() if isinstance(thing, type) else [thing]
        functions = [each for each in members if isinstance(each, FunctionType)]
        used: dict[str, Any] = {}
        for function in functions:
            used.update(_used(function))
        todo += used.values()
        numbers: dict[str, float] = {}
        for name, value in used.items():
            # a bool is an int, too, and no number here
            number = _as_float(value) if type(value) in (int, float) else None
            if number is not None:
                numbers[name] = number
        yield thing, numbers


def _plain(thing: Any) -> Any:
    """Return the function or class behind a value, or None if there is neither."""
    if isinstance(thing, functools.partial):
        return _plain(thing.func)
    if isinstance(thing, MethodType):
        return _plain(thing.__func__)
    if isinstance(thing, nn.Module):
        return type(thing)
    if isinstance(thing, FunctionType | type):
        return thing
    # an object whose class is called by `__call__`, as a training step may be
    if callable(thing) and isinstance(type(thing).__call__, FunctionType):
        return type(thing)
    return None


def _is_user_code(thing: Any) -> bool:
    try:
        file = inspect.getsourcefile(thing) or ""
    except (TypeError, OSError):
        # a class of Python's own, or one that was typed in
        return False
    if file.startswith(FAULTS):
        return True
    return not file.startswith(NOT_THE_USERS) and "site-packages" not in file


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names of a function's closure and globals that it uses, each with its value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # a cell is empty, and raises, until its name is assigned
        with suppress(ValueError):
            yield name, cell.cell_contents
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> set[str]:
    """Return the global names and attributes in a function's code, and in the functions inside."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)
