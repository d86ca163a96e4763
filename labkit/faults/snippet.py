"""The code of one form of a fault, as its author would have written it.

Idea: the source is parsed. Every choice by `fixed` is made, and a loop that several faults share
replaces the call that returns it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from itertools import pairwise
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
    definition = _definition(function)
    has_docstring = ast.get_docstring(definition) is not None
    statements = _Decided(fixed).visit(definition).body
    if has_docstring:
        statements = statements[1:]
    match statements[-1]:
        case ast.Return(value=ast.Call(func=ast.Name(id=("plain" | "scaled") as name)) as call):
            statements[-1:] = _inlined(_definition(getattr(loops, name)), call)
    return _spaced(statements)


def _spaced(statements: list[ast.stmt]) -> str:
    """Return statements as text, with empty lines around definitions and before a return."""
    definitions = (ast.FunctionDef, ast.ClassDef)
    texts = [ast.unparse(ast.fix_missing_locations(statement)) for statement in statements]
    code = texts[0]
    for (before, after), text in zip(pairwise(statements), texts[1:], strict=True):
        apart = isinstance(before, definitions) or isinstance(after, (*definitions, ast.Return))
        code += ("\n\n" if apart else "\n") + text
    return code


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
            # without its annotation
            return ast.arg(node.arg)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            node.returns = None
            return self.generic_visit(node)

        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            match node.value:
                # a call of an optional argument that was not passed
                case ast.Call(func=ast.Name(id=name)) if name in names and name not in bound:
                    return None
            return self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> ast.expr:
            return bound.get(node.id, node)

    # the first statement is the docstring
    return [Arguments().visit(statement) for statement in definition.body[1:]]


class _Decided(ast.NodeTransformer):
    """Transformer that replaces `fixed` by its value, and every choice by the branch it takes."""

    def __init__(self, fixed: bool) -> None:
        self.fixed = fixed

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace the name by its value."""
        return ast.Constant(self.fixed) if node.id == "fixed" else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Decide `not fixed`."""
        self.generic_visit(node)
        value = _truth(node.operand)
        if value is None or not isinstance(node.op, ast.Not):
            return node
        return ast.Constant(not value)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Decide `fixed and x`, or reduce it to x."""
        self.generic_visit(node)
        # `or` is True if an operand is, `and` is False if one is
        decisive = isinstance(node.op, ast.Or)
        if decisive in map(_truth, node.values):
            return ast.Constant(decisive)
        undecided = [value for value in node.values if _truth(value) is None]
        if not undecided:
            return ast.Constant(not decisive)
        if len(undecided) == 1:
            return undecided[0]
        node.values = undecided
        return node

    def visit_If(self, node: ast.If) -> Any:
        """Replace the statement by the lines of its branch."""
        self.generic_visit(node)
        value = _truth(node.test)
        if value is None:
            return node
        branch = node.body if value else node.orelse
        # None removes the statement
        return branch or None

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Replace the expression by its branch."""
        self.generic_visit(node)
        value = _truth(node.test)
        if value is None:
            return node
        return node.body if value else node.orelse


def _truth(node: ast.expr) -> bool | None:
    """Return the value of an expression that is True or False, None for any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    return None
