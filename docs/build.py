"""Which functions does the lab offer to a program of one's own? docs/api.md, made from signatures and docstrings.

Idea: what a room exports (`__all__`) is what may be used; the page shows each as it would stand in a stub file.

    python docs/build.py            write docs/api.md
    python docs/build.py --check    fail if it is not up to date
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any

PAGE = Path(__file__).with_name("api.md")
ROOMS = "amp train instrument frameworks faults clinic machine formats gemm bench interop".split()
FACES = ("apex.amp", "fastai.basics", "fastai.callback.fp16", "oneflow.nn", "oneflow.amp")
MODULES = (*ROOMS, *(f"frameworks.{face}" for face in FACES))
KEYS = 30  # of a table of rows that the page names
HEAD = """# The functions of labkit

For who trains a model of their own: everything that a room of `labkit` exports, with its docstring. Import it from the
room, `from labkit.amp import Engine`, and a framework's calls from its face. Adapters of frameworks that are installed
beside the lab (fastai, Lightning, Accelerate, the Trainer) are in docs/frameworks.md. Made by `make docs`; do not edit.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(_room(name) for name in MODULES)])


def _room(name: str) -> str:
    module = importlib.import_module(f"labkit.{name}")
    public = getattr(module, "__all__", None) or [n for n, v in vars(module).items() if _made_in(v, module.__name__)]
    question = (inspect.getdoc(module) or "").split("\n\n")[0]
    parts = [entry for each in sorted(public) if (entry := _entry(each, getattr(module, each)))]
    return "\n".join([f"## labkit.{name}\n\n{question}\n", *parts])


def _made_in(value: object, module: str) -> bool:
    called = inspect.isfunction(value) or inspect.isclass(value)
    return called and value.__module__ == module and not value.__name__.startswith("_")  # type: ignore[attr-defined]


def _entry(name: str, value: object) -> str:
    """Return a heading and the stub of a function or a class, or what a value is; "" for what is not the lab's own."""
    value = inspect.unwrap(value) if callable(value) else value
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        plain = isinstance(value, dict | tuple | frozenset | float | int | str | UnionType)
        return f"### {name}\n\n{_told(value)}\n" if plain or type(value).__module__.startswith("labkit") else ""
    if not value.__module__.startswith("labkit"):
        return ""
    head = f"class {name}" if inspect.isclass(value) else f"def {name}"
    return f"### {name}\n\n```python\n{head}{_signature(value)}:\n{_documented(value, 4)}{_methods(value)}```\n"


def _told(value: Any) -> str:
    """Return what a value is: its type, and the first of what it holds."""
    if not isinstance(value, dict | tuple | frozenset) or not value:
        return f"A `{type(value).__name__}`: `{value!r}`."
    keys = sorted(value) if isinstance(value, frozenset) else list(value)
    held = f" of `{type(next(iter(value.values()))).__name__}`" if isinstance(value, dict) else ""
    more = f" and {len(keys) - KEYS} more" if len(keys) > KEYS else ""
    return f"A `{type(value).__name__}`{held}: {', '.join(f'`{key}`' for key in keys[:KEYS])}{more}."


def _methods(value: object) -> str:
    """Return the stubs of a class's own public methods and properties."""
    if not inspect.isclass(value) or issubclass(value, Enum):
        return ""
    stubs = []
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            kind = "    @property\n" if isinstance(member, property) else ""
            stubs.append(f"\n{kind}    def {name}{_signature(function)}:\n{_documented(function, 8)}")
    return "".join(stubs)


def _signature(value: object) -> str:
    """Return a signature as it is written in a stub, a line for each parameter where it would be long."""
    if inspect.isclass(value) and (issubclass(value, Enum | Exception) or value.__init__ is object.__init__):
        return ""
    signature = inspect.signature(value)  # type: ignore[arg-type]
    as_written = [
        each.replace(annotation=_Written(each.annotation, str), default=_Written(each.default, repr))
        for each in signature.parameters.values()
    ]
    returns = inspect.Signature.empty if inspect.isclass(value) else _Written(signature.return_annotation, str)
    text = str(signature.replace(parameters=as_written, return_annotation=returns))
    if len(text) <= 100 or not as_written:
        return "" if text == "()" else text
    lines = [f"    {each},\n" for each in as_written]
    by_name = [each.kind is each.KEYWORD_ONLY for each in as_written]
    if True in by_name and "*" not in "".join(str(each)[:1] for each in as_written):
        lines.insert(by_name.index(True), "    *,\n")
    return f"(\n{''.join(lines)})" + ("" if inspect.isclass(value) else f" -> {returns!r}")


class _Written:
    """An annotation or a default as it is written: the same on every machine and in every version of Python."""

    def __new__(cls, meant: object, write: Callable[[object], str]) -> Any:
        return meant if meant is inspect.Parameter.empty else super().__new__(cls)

    def __init__(self, meant: object, write: Callable[[object], str]) -> None:
        self.meant, self.write = meant, write

    def __repr__(self) -> str:
        if isinstance(self.meant, Enum):
            return f"{type(self.meant).__name__}.{self.meant.name}"
        text = getattr(self.meant, "__name__", None) or self.write(self.meant)
        return "..." if self.write is repr and (len(text) > 30 or re.search(r"<| at 0x", text)) else text


def _documented(value: object, indent: int) -> str:
    text = inspect.getdoc(value) or ""
    lines = f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'
    return "".join(f"{' ' * indent}{line}".rstrip() + "\n" for line in lines.split("\n"))


if __name__ == "__main__":
    from page import write_or_check

    sys.exit(write_or_check(PAGE, page()))
