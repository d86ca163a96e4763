"""Faults of an answer to an exercise, planted into a right answer one at a time.

`in_code` changes one place of a solution: a comparison, a constant, a sign, a statement. `around`
changes what goes in or comes out: another dtype, the elements swapped, one kind of input handled
wrongly.
"""

import ast
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

Answer = Callable[..., object]
Change = Callable[[Any], Any]

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Pow: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.MatMult: ast.Mult,
}
# Operators whose operands cannot be exchanged: a - b is not b - a.
ONE_WAY = (ast.Sub, ast.Div, ast.Pow, ast.FloorDiv, ast.Mod, ast.MatMult)
NAMED = {
    "min": ("max",),
    "max": ("min",),
    "all": ("any",),
    "any": ("all",),
    "range": ("reversed_range",),
    "floor": ("ceil", "trunc"),
    "ceil": ("floor", "trunc"),
    "trunc": ("floor",),
    "stdev": ("pstdev",),
    "isfinite": ("isnan", "isinf"),
    "isnan": ("isinf", "isfinite"),
    "isinf": ("isnan",),
    "float32": ("float16", "float64"),
    "float16": ("float32", "bfloat16"),
    "bfloat16": ("float16",),
}
DROPPED = {"float", "half", "abs", "bool", "clone", "round"}


# --- in the code ---


def in_code(source: str) -> Iterator[tuple[str, str]]:
    """Yield (what is changed, the changed source) for every place of every function in a source."""
    tree = ast.parse(source)
    # a bare expression at the top level is the call of `check`, which is no part of the answer
    tree.body = [statement for statement in tree.body if not isinstance(statement, ast.Expr)]
    for parent in list(ast.walk(tree)):
        for field, value in list(ast.iter_fields(parent)):
            nodes = value if isinstance(value, list) else [value]
            for place, node in enumerate(nodes):
                if not isinstance(node, ast.AST):
                    continue
                where = (
                    "" if isinstance(node, (ast.FunctionDef, ast.For)) else f": {_text(node)[:60]}"
                )
                for label, instead in (
                    *_of_operators(node),
                    *_of_values(node),
                    *_of_statements(node),
                ):
                    changed = [*nodes[:place], instead, *nodes[place + 1 :]]
                    setattr(parent, field, changed if isinstance(value, list) else instead)
                    yield label + where, _text(tree)
                    setattr(parent, field, value)


def _text(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def _of_operators(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield (what is changed, the node to put in place) for what can go wrong at an operator."""
    other = partial(_other, node)
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for new in COMPARED[type(op)]:
                    yield f"compare {i} {new.__name__}", other(ops=[*ops[:i], new(), *ops[i + 1 :]])
        # "..." % x formats a text, and is no arithmetic
        case ast.BinOp(op=op, left=left, right=right) if not isinstance(
            getattr(left, "value", None), str
        ):
            yield f"compute {COMPUTED[type(op)].__name__}", other(op=COMPUTED[type(op)]())
            if isinstance(op, ONE_WAY):
                yield "exchange", other(left=right, right=left)
            if isinstance(op, ast.MatMult):
                yield "add up in FP16", ast.Call(ast.Name("_half_product"), [left, right], [])
        case ast.BoolOp(op=op):
            yield "logic", other(op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.USub()):
            yield "sign dropped", other(op=ast.UAdd())
        case ast.UnaryOp(op=ast.Not()):
            yield "not dropped", ast.UnaryOp(ast.Not(), node)


def _of_values(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield (what is changed, the node to put in place) for constants, names, tuples and calls."""
    other = partial(_other, node)
    match node:
        case ast.Constant(value=bool(value)):
            yield "opposite", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (
                ("one more", ast.Constant(value + 1)),
                ("one less", ast.Constant(value - 1)),
            )
        case ast.Constant(value=float(value)):
            yield "one more", ast.Constant(value + 1)
            yield "an ulp more", ast.Constant(math.nextafter(value, math.inf))
            yield "an ulp less", ast.Constant(math.nextafter(value, -math.inf))
        case ast.Name(id=name) if name in NAMED:
            yield from ((f"name {new}", other(id=new)) for new in NAMED[name])
        case ast.Attribute(attr=name) if name in NAMED:
            yield from ((f"name {new}", other(attr=new)) for new in NAMED[name])
        case ast.Call(func=ast.Attribute(attr=name, value=owner), args=arguments) if (
            name in DROPPED
        ):
            yield "call dropped", arguments[0] if arguments else owner
        case ast.Call(func=ast.Name(id=name), args=[argument]) if name in DROPPED:
            yield "call dropped", argument
        case ast.Call(func=ast.Attribute(attr="sum" | "mean" as name, value=owner), args=arguments):
            if not _is_module(owner):
                yield (
                    "add up in FP16",
                    other(func=ast.Name("_half_sum"), args=[owner, ast.Constant(name), *arguments]),
                )
        case ast.Tuple(elts=[first, second, *rest], ctx=ast.Load()):
            yield "exchange the first two", other(elts=[second, first, *rest])


def _of_statements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield (what is changed, the node to put in place) for conditions and bodies of statements."""
    other = partial(_other, node)
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "condition negated", other(test=ast.UnaryOp(ast.Not(), test))
        case ast.FunctionDef(body=body):
            has_docstring = isinstance(body[0], ast.Expr) and isinstance(
                body[0].value, ast.Constant
            )
            first = 1 if has_docstring else 0
            for i in range(first, len(body)):
                before, (here, *after) = body[:i], body[i:]
                if not isinstance(here, ast.Return):
                    yield f"drop statement {i}", other(body=[*before, ast.Pass(), *after])
                if after and not isinstance(after[0], ast.Return):
                    yield f"swap statements {i}", other(body=[*before, after[0], here, *after[1:]])
        case ast.For(body=[_, _, *_] as body):
            yield from (
                (f"drop statement {i}", other(body=body[:i] + body[i + 1 :]))
                for i in range(len(body))
            )


def _is_module(owner: ast.AST) -> bool:
    """Return whether `owner.sum(x)` is a function of a module, and not a method of a tensor."""
    return isinstance(owner, ast.Name) and owner.id in ("torch", "np", "statistics", "math")


def _other(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    vars(changed).update(fields)
    return changed


def _half_sum(
    values: torch.Tensor, how: str, dim: int | None = None, keepdim: bool = False
) -> torch.Tensor:
    """Return a sum or mean over a dimension, or over all, with an FP16 accumulator."""
    rows = values.reshape(-1) if dim is None else values.movedim(dim, 0)
    total = torch.zeros(rows.shape[1:]).half()
    for row in rows:
        total = (total.float() + row.float()).half()
    total = total if how == "sum" else total / len(rows)
    return (total.unsqueeze(dim) if keepdim and dim is not None else total).to(values.dtype)


def _half_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.stack([_half_sum(row[:, None] * b, "sum", 0) for row in a])


PRELUDE: dict[str, object] = {
    function.__name__: function for function in (_half_sum, _half_product)
}
PRELUDE["reversed_range"] = lambda *a: reversed(range(*a))


# --- around an answer ---


def _each(change: Change, *kinds: type) -> Change:
    """Return a change of every part of a value that is of these kinds."""

    def changed(value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(changed, value))
        if type(value) is dict:
            return {key: changed(item) for key, item in value.items()}
        return change(value) if isinstance(value, kinds) and not isinstance(value, bool) else value

    return changed


def _other_dtype(value: Any) -> Any:
    """Return a tensor or a number of numpy in another dtype."""
    if isinstance(value, np.generic):
        return np.float32(value).item()
    if value.dtype == torch.float16:
        return value.float()
    if value.is_floating_point():
        return value.half()
    return value


def _only(index: int) -> Change:
    """Return a change that keeps one element: a list is cut to it, a tensor is 0 elsewhere.

    Args:
        index: 0 for the first element, -1 for the last one.
    """

    def changed(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.numel() > 1:
            other = torch.zeros_like(value)
            other.reshape(-1)[index] = value.reshape(-1)[index]
            return other
        return [value[index]] if type(value) is list and len(value) > 1 else value

    return changed


def _flipped_zero(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.where(value == 0, -value, value) if value.is_floating_point() else value
    return -value if value == 0 else value


OUT: dict[str, Change] = {
    "the wrong dtype": _each(_other_dtype, torch.Tensor, np.float16),
    "returns swapped": lambda v: (v[1], v[0], *v[2:]) if type(v) is tuple and len(v) > 1 else v,
    "in reverse": lambda value: value[::-1] if type(value) is list else value,
    "the first element only": _only(0),
    "the last element only": _only(-1),
    "the first tensor's first element only": _each(_only(0), torch.Tensor),
    "one ulp up": _each(lambda x: math.nextafter(x, math.inf), float),
    "one more": _each(lambda x: x + 1 if type(x) is int else x, int),
    "one less": _each(lambda x: x - 1 if type(x) is int else x, int),
    "the other sign": _each(lambda x: -x, int, float, torch.Tensor),
    "without its sign": _each(abs, int, float, torch.Tensor),
    "True for False": lambda value: not value if type(value) is bool else value,
    "the negative zero": _each(_flipped_zero, float, torch.Tensor),
    "rounded to FP16": _each(lambda x: float(np.float16(x)), float),
    "rounded to FP32": _each(lambda x: float(np.float32(x)), float),
    "NaN for infinity": _each(lambda x: math.nan if math.isinf(x) else x, float),
}


def _where(
    kind: Callable[[torch.Tensor], torch.Tensor], instead: Callable[[torch.Tensor], torch.Tensor]
) -> Change:
    """Return a change of each element of this kind.

    Elements of floating-point tensors and single numbers are changed, also in nested containers.
    """

    def of_one(value: Any) -> Any:
        x = (
            value
            if isinstance(value, torch.Tensor)
            else torch.tensor(float(value), dtype=torch.float64)
        )
        if not x.is_floating_point():
            return value
        x = torch.where(kind(x), instead(x), x)
        return x if isinstance(value, torch.Tensor) else type(value)(x.item())

    return _each(of_one, torch.Tensor, float, np.floating)


IN: dict[str, Change] = {
    "NaN taken for 0": _where(torch.isnan, torch.zeros_like),
    "inf taken for a number": _where(torch.isinf, torch.ones_like),
    "-inf taken for inf": _where(torch.isneginf, torch.abs),
    "FP16's subnormals flushed": _where(
        lambda x: (x.abs() < 2.0**-14) & (x != 0), torch.zeros_like
    ),
    "what FP16 loses flushed": _where(lambda x: (x.abs() <= 2.0**-25) & (x != 0), torch.zeros_like),
    "the sign ignored": _where(torch.signbit, torch.abs),
    "tensors cut to FP16": _each(
        lambda x: x.half().to(x.dtype) if x.is_floating_point() else x, torch.Tensor
    ),
}


MUTABLE = (list, dict, torch.Tensor, np.ndarray)


@dataclass
class Faulty:
    """A right answer with a fault around it.

    Attributes:
        right: The right answer.
        fault: Called with the right answer and the arguments; returns what it answers, and whether
            the fault changed that.
        met: Whether the fault changed some call.
    """

    right: Answer
    fault: Callable[[Answer, tuple[Any, ...]], tuple[object, bool]]
    met: bool = False

    def __call__(self, *arguments: Any) -> object:
        answer, met = self.fault(self.right, arguments)
        self.met |= met
        return answer


def around(right: Answer, may_change: tuple[bool, ...]) -> Iterator[tuple[str, Faulty]]:
    """Yield (what is changed, the answer with that fault).

    `may_change` has for each argument whether an answer may change it.
    """
    yield from (
        (f"out: {name}", Faulty(right, partial(_changed_out, change)))
        for name, change in OUT.items()
    )
    yield from (
        (f"in: {name}", Faulty(right, partial(_changed_in, change))) for name, change in IN.items()
    )
    yield from (
        (f"fails at length {n}", Faulty(right, partial(_failing_at_length, n))) for n in (0, 1)
    )
    yield from (
        (f"returns {x} at once", Faulty(right, partial(_returned_early, x)))
        for x in (0.0, math.inf)
    )
    yield "arguments changed in place", Faulty(right, partial(_spoiling, may_change))


def _changed_out(change: Change, right: Answer, arguments: tuple[Any, ...]) -> tuple[object, bool]:
    value = right(*arguments)
    changed = change(value)
    return changed, repr(changed) != repr(value)


def _changed_in(change: Change, right: Answer, arguments: tuple[Any, ...]) -> tuple[object, bool]:
    changed = change(arguments)
    met = repr(changed) != repr(arguments)
    return right(*changed), met


def _failing_at_length(
    length: int, right: Answer, arguments: tuple[Any, ...]
) -> tuple[object, bool]:
    if any(length in _lengths(argument) for argument in arguments):
        raise IndexError("out of range")
    return right(*arguments), False


def _lengths(value: Any) -> Iterator[int]:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield from value.shape
    elif isinstance(value, (list, dict)) or (
        isinstance(value, tuple) and not hasattr(value, "_fields")
    ):
        yield len(value)
        for item in value.values() if isinstance(value, dict) else value:
            yield from _lengths(item)


def _returned_early(value: float, right: Answer, arguments: tuple[Any, ...]) -> tuple[object, bool]:
    """Hand the first argument back where it is this number all over."""
    first = arguments[0]
    is_number = isinstance(first, (int, float, np.generic)) and not isinstance(first, bool)
    elements: list[float] = []
    if isinstance(first, torch.Tensor):
        elements = first.reshape(-1).tolist()
    elif is_number:
        elements = [float(first)]
    if elements and all(abs(x) == value for x in elements):
        return first, True
    return right(*arguments), False


def _spoiling(
    may_change: tuple[bool, ...], right: Answer, arguments: tuple[Any, ...]
) -> tuple[object, bool]:
    """Answer rightly, and spoil the arguments that may not be changed."""
    answer = right(*copy.deepcopy(arguments))
    fixed = [argument for argument, may in zip(arguments, may_change, strict=True) if not may]
    _spoil(fixed)
    return answer, any(type(argument) in MUTABLE for argument in fixed)


def _spoil(value: Any) -> None:
    """Change a mutable value in place, innermost elements first."""
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            _spoil(item)
    if isinstance(value, list):
        value.append(None)
    elif isinstance(value, dict):
        value.clear()
    elif isinstance(value, torch.Tensor):
        value.zero_().sub_(1)
    elif isinstance(value, np.ndarray):
        value[:] = -1
