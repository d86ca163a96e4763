"""What goes wrong when an answer is written: faults that are planted into a right answer, one at a time.

`in_code` changes one place of a lesson's own solution: a comparison, a constant, a sign, a statement. `OUT` and `IN`
change what comes out of it or goes in: another dtype, the elements swapped, one kind of input handled wrongly.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

Answer = Callable[..., object]
_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
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
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.MatMult: ast.Mult,
}
_NAMED = {
    "min": ("max",),
    "max": ("min",),
    "all": ("any",),
    "any": ("all",),
    "floor": ("ceil", "trunc"),
    "ceil": ("floor", "trunc"),
    "trunc": ("floor",),
    "isfinite": ("isnan", "isinf"),
    "isnan": ("isinf", "isfinite"),
    "isinf": ("isnan",),
    "stdev": ("pstdev",),
    "range": ("reversed_range",),
    "float32": ("float16", "float64"),
    "float16": ("float32", "bfloat16"),
    "bfloat16": ("float16",),
}
_DROPPED = {"float", "half", "abs", "bool", "clone", "round"}


def in_code(source: str, entry: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield (what is changed, what makes the changed source) for every place of every function in it."""
    tree = ast.parse(source)
    tree.body = [s for s in tree.body if not isinstance(s, ast.Expr)]  # not the check
    for number, node in enumerate(ast.walk(tree)):
        place = "" if isinstance(node, (ast.FunctionDef, ast.For)) else f": {ast.unparse(node)[:60]}"
        for label in _changes(node):
            yield f"{label}{place}", partial(_changed_source, tree, number, label)


def _changed_source(tree: ast.Module, number: int, label: str) -> str:
    changed = copy.deepcopy(tree)
    _change(next(node for i, node in enumerate(ast.walk(changed)) if i == number), label)
    return ast.unparse(ast.fix_missing_locations(changed))


def _changes(node: ast.AST) -> list[str]:  # noqa: C901
    """Return what can be changed at this node."""
    match node:
        case ast.Compare(ops=ops):
            return [f"compare {i} {new.__name__}" for i, op in enumerate(ops) for new in _COMPARED[type(op)]]
        case ast.BinOp(op=op, left=left):
            text = isinstance(left, ast.Constant) and isinstance(left.value, str)
            if text:
                return []
            fp16 = ["add up in FP16"] if isinstance(op, ast.MatMult) else []
            return [f"compute {_CALCULATED[type(op)].__name__}", *(["exchange"] if _one_way(op) else []), *fp16]
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not() | ast.USub()):
            return ["logic"]
        case ast.Constant(value=bool()):
            return ["opposite"]
        case ast.Constant(value=int()):
            return ["one more", "one less"]
        case ast.Constant(value=float()):
            return ["one more", "an ulp more", "an ulp less"]
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _NAMED:
            return [f"name {new}" for new in _NAMED[name]]
        case ast.Call(func=ast.Attribute(attr=name)) if name in _DROPPED:
            return ["call dropped"]
        case ast.Call(func=ast.Name(id=name), args=[_]) if name in _DROPPED:
            return ["call dropped"]
        case ast.Call(func=ast.Attribute(attr="sum" | "mean", value=owner)) if not isinstance(owner, ast.Name):
            return ["add up in FP16"]
        case ast.Call(func=ast.Attribute(attr="sum", value=ast.Name(id=name))) if name != "statistics":
            return ["add up in FP16"]
        case ast.If() | ast.IfExp() | ast.While():
            return ["condition negated"]
        case ast.Tuple(elts=[_, _, *_], ctx=ast.Load()):
            return ["exchange the first two"]
        case ast.FunctionDef(body=body):
            told = range(
                1 if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) else 0, len(body)
            )
            dropped = [f"drop statement {i}" for i in told if not isinstance(body[i], ast.Return)]
            return dropped + [f"swap statements {i}" for i in told[:-1] if not isinstance(body[i + 1], ast.Return)]
        case ast.For(body=body):
            return [f"drop statement {i}" for i in range(len(body)) if len(body) > 1]
    return []


def _one_way(op: ast.operator) -> bool:
    return isinstance(op, (ast.Sub, ast.Div, ast.Pow, ast.FloorDiv, ast.Mod, ast.MatMult))


def _change(node: Any, label: str) -> None:  # noqa: C901
    match label.split():
        case ["compare", index, name]:
            node.ops[int(index)] = getattr(ast, name)()
        case ["compute", name]:
            node.op = getattr(ast, name)()
        case ["exchange"]:
            node.left, node.right = node.right, node.left
        case ["logic"] if isinstance(node, ast.BoolOp):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ["logic"]:
            node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
            if isinstance(node.op, ast.Not):
                node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ["opposite"]:
            node.value = not node.value
        case ["one", more]:
            node.value += 1 if more == "more" else -1
        case ["an", "ulp", more]:
            node.value = math.nextafter(node.value, math.inf if more == "more" else -math.inf)
        case ["name", name] if isinstance(node, ast.Name):
            node.id = name
        case ["name", name]:
            node.attr = name
        case ["add", *_] if isinstance(node, ast.BinOp):
            twin = ast.Call(ast.Name("_half_product", ast.Load()), [node.left, node.right], [])
            node.__class__, node.__dict__ = ast.Call, vars(twin)
        case ["add", *_]:
            node.args.insert(0, node.func.value)
            node.args.insert(1, ast.Constant(node.func.attr))
            node.func = ast.Name("_half_sum", ast.Load())
        case ["call", "dropped"]:
            inner = node.func.value if isinstance(node.func, ast.Attribute) and not node.args else node.args[0]
            node.func, node.args, node.keywords = ast.Name("_same", ast.Load()), [inner], []
        case ["condition", "negated"]:
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ["exchange", *_]:
            node.elts[:2] = node.elts[1::-1]
        case ["swap", _, index]:
            node.body[int(index)], node.body[int(index) + 1] = node.body[int(index) + 1], node.body[int(index)]
        case ["drop", _, index]:
            node.body[int(index)] = ast.Pass()


def _half_sum(values: torch.Tensor, how: str, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
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
    "_same": lambda value: value,
    "_half_sum": _half_sum,
    "_half_product": _half_product,
    "reversed_range": lambda *a: reversed(range(*a)),
}


# --- around an answer: what comes out ---


def _each(change: Callable[[Any], Any], kinds: tuple[type, ...]) -> Callable[[Any], Any]:
    """Return a change of every part of an answer that is of these kinds."""

    def changed(value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(changed, value))
        if type(value) is dict:
            return {key: changed(item) for key, item in value.items()}
        return change(value) if isinstance(value, kinds) and not isinstance(value, bool) else value

    return changed


def _other_dtype(tensor: Any) -> Any:
    if isinstance(tensor, np.generic):
        return np.float32(tensor).item()
    return tensor.float() if tensor.dtype == torch.float16 else tensor.half() if tensor.is_floating_point() else tensor


def _only(index: int) -> Callable[[Any], Any]:
    """Return a change that spoils all elements of a sequence or tensor but the first, or the last."""

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
    return -value if isinstance(value, float) and value == 0 else value


OUT: dict[str, Callable[[Any], Any]] = {
    "the wrong dtype": _each(_other_dtype, (torch.Tensor, np.float16)),
    "returns swapped": lambda value: (
        (value[1], value[0], *value[2:]) if type(value) is tuple and len(value) > 1 else value
    ),
    "in reverse": lambda value: value[::-1] if type(value) is list else value,
    "the first element only": _only(0),
    "the last element only": _only(-1),
    "the first tensor's first element only": _each(_only(0), (torch.Tensor,)),
    "one ulp up": _each(lambda x: math.nextafter(x, math.inf) if isinstance(x, float) else x, (float,)),
    "one more": _each(lambda x: x + 1 if type(x) is int else x, (int,)),
    "one less": _each(lambda x: x - 1 if type(x) is int else x, (int,)),
    "the other sign": _each(lambda x: -x, (int, float, torch.Tensor)),
    "without its sign": _each(abs, (int, float, torch.Tensor)),
    "True for False": lambda value: not value if type(value) is bool else value,
    "the negative zero": _each(_flipped_zero, (float, torch.Tensor)),
    "rounded to FP16": _each(lambda x: float(np.float16(x)), (float,)),
    "rounded to FP32": _each(lambda x: float(np.float32(x)), (float,)),
    "NaN for infinity": _each(lambda x: math.nan if isinstance(x, float) and math.isinf(x) else x, (float,)),
}


# --- around an answer: what goes in ---


def _elements(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a change of each floating-point tensor and number, wherever it stands in an argument."""

    def of_one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value) if value.is_floating_point() else value
        if isinstance(value, np.generic):
            return type(value)(change(torch.tensor(value.item(), dtype=torch.float64)).item())
        return change(torch.tensor(value, dtype=torch.float64)).item()

    return _each(of_one, (torch.Tensor, float, np.floating))


def _where(kind: Callable[[torch.Tensor], torch.Tensor], instead: float) -> Callable[[Any], Any]:
    return _elements(lambda x: torch.where(kind(x), torch.full_like(x, instead), x))


IN: dict[str, Callable[[Any], Any]] = {
    "NaN taken for 0": _where(torch.isnan, 0.0),
    "inf taken for a number": _where(torch.isinf, 1.0),
    "-inf taken for inf": _where(lambda x: x == -math.inf, math.inf),
    "FP16's subnormals flushed": _where(lambda x: (x.abs() < 2.0**-14) & (x != 0), 0.0),
    "what FP16 loses flushed": _where(lambda x: (x.abs() <= 2.0**-25) & (x != 0), 0.0),
    "the sign ignored": _elements(torch.abs),
    "tensors cut to FP16": _each(lambda x: x.half().to(x.dtype) if x.is_floating_point() else x, (torch.Tensor,)),
}


# --- what is too short ---


def _lengths(value: Any) -> Iterator[int]:
    """Yield the lengths of all lists and of all dimensions of tensors in an argument."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield from value.shape
    elif isinstance(value, (list, dict)) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
        yield len(value)
        for item in value.values() if isinstance(value, dict) else value:
            yield from _lengths(item)


def fails_at_length(answer: Answer, length: int) -> Answer:
    """Return the answer, but for arguments that hold something of this length: there it stops."""

    def failing(*arguments: Any) -> object:
        if any(found == length for argument in arguments for found in _lengths(argument)):
            raise IndexError("out of range")
        return answer(*arguments)

    return failing


def returns_early(answer: Answer, value: float) -> Answer:
    """Return the answer, but where its first argument is this number all over: there it hands that back at once."""

    def early(*arguments: Any) -> object:
        elements = list(_numbers(arguments[0]))
        return arguments[0] if elements and all(abs(x) == value for x in elements) else answer(*arguments)

    return early


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, torch.Tensor):
        yield from value.reshape(-1).tolist()
    elif isinstance(value, (int, float, np.generic)) and not isinstance(value, bool):
        yield float(value)


def changes_arguments(answer: Answer, but: tuple[bool, ...]) -> Answer:
    """Return the answer, which then spoils what it was given, but for the arguments that it may change."""

    def spoiling(*arguments: Any) -> object:
        given = answer(*copy.deepcopy(arguments))
        for argument, may_change in zip(arguments, but, strict=True):
            if not may_change:
                _spoil(argument)
        return given

    return spoiling


def _spoil(value: Any) -> None:
    """Change a mutable argument in place, innermost elements first."""
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


def changed_out(answer: Answer, name: str) -> Answer:
    """Return the answer with what comes out of it changed."""
    return lambda *arguments: OUT[name](answer(*arguments))


def changed_in(answer: Answer, name: str) -> Answer:
    """Return the answer with what goes into it changed."""
    return lambda *arguments: answer(*map(IN[name], arguments))
