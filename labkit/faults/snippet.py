"""The code of one form of a fault, as its author would have written it.

Idea: the source is parsed. Every choice by `fixed` is made, and a loop that several faults share
replaces the call that returns it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

from labkit.faults import loops
from labkit.faults.fault import Fault


def snippet(fault: Fault, fixed: bool) -> str:
    """Return the code of one form.

    >>> from labkit.faults import FAULTS
    >>> print(snippet(FAULTS["log_of_epsilon"], fixed=False).splitlines()[-1])
    return Training(step, batches(300), lambda: accuracy(model), model, optimizer, scaler)
    """
    return code_of(fault.shown or fault.function, fixed)


def code_of(function: Callable[..., Any], fixed: bool) -> str:
    """Return the body of a function of `fixed`, with every choice made, without its docstring."""
    body = _Decided(fixed).visit(_definition(function)).body
    lines = body[ast.get_docstring(_definition(function)) is not None :]
    match lines[-1]:
        case ast.Return(value=ast.Call(func=ast.Name(id=("plain" | "scaled") as name)) as call):
            lines[-1:] = _inlined(_definition(getattr(loops, name)), call)
    code = "\n".join(ast.unparse(ast.fix_missing_locations(line)) for line in lines)
    return re.sub(r"\n(?=(?:def|class) )|(?<=[^\n])\n(?=return )", "\n\n", code)


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    (definition,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def _inlined(definition: ast.FunctionDef, call: ast.Call) -> list[ast.stmt]:
    """Return the body of a function with a call's arguments in place of its parameters.

    Calls of arguments that are left out are removed.
    """
    names = [argument.arg for argument in definition.args.args]
    bound = dict(zip(names, call.args, strict=False))

    class Arguments(ast.NodeTransformer):
        def visit_arg(self, node: ast.arg) -> ast.arg:
            return ast.arg(node.arg)  # without its annotation

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            node.returns = None
            return self.generic_visit(node)

        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            match node.value:
                case ast.Call(func=ast.Name(id=name)) if name in names and name not in bound:
                    return None
            return self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> ast.expr:
            return bound.get(node.id, node)

    return [Arguments().visit(statement) for statement in definition.body[1:]]


class _Decided(ast.NodeTransformer):
    """Transformer that puts True or False for `fixed`, and keeps the branch that is then taken.

    It simplifies `and` and `or` in the same way.
    """

    def __init__(self, fixed: bool) -> None:
        self.fixed = fixed

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace the name by its value."""
        return ast.Constant(self.fixed) if node.id == "fixed" else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Decide `not fixed`."""
        self.generic_visit(node)
        value = _truth(node.operand)
        return (
            node if value is None or not isinstance(node.op, ast.Not) else ast.Constant(not value)
        )

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Decide `fixed and x`, or leave x."""
        self.generic_visit(node)
        decisive = isinstance(node.op, ast.Or)
        if decisive in map(_truth, node.values):
            return ast.Constant(decisive)
        node.values = [value for value in node.values if _truth(value) is None]
        return node if len(node.values) > 1 else node.values[0]

    def visit_If(self, node: ast.If) -> Any:
        """Replace the statement by the lines of its branch."""
        self.generic_visit(node)
        value = _truth(node.test)
        return node if value is None else (node.body if value else node.orelse) or None

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Replace the expression by its branch."""
        self.generic_visit(node)
        value = _truth(node.test)
        if value is None:
            return node
        return node.body if value else node.orelse


def _truth(node: ast.expr) -> bool | None:
    """Return the value of a decided expression, None of another."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None
