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
from typing import Any

PAGE = Path(__file__).with_name("api.md")
ROOMS = ("amp", "train", "instrument", "frameworks", "clinic", "formats", "gemm", "bench", "interop")
HEAD = """# The functions of labkit

For who trains a model of their own: everything that a room of `labkit` exports, with its docstring. Import it from the
room, `from labkit.amp import Engine`. Made by `make docs`; do not edit.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(_room(name) for name in ROOMS)])


def _room(name: str) -> str:
    module = importlib.import_module(f"labkit.{name}")
    public = getattr(module, "__all__", None) or [n for n, v in vars(module).items() if _made_in(v, module.__name__)]
    question = (inspect.getdoc(module) or "").split("\n\n")[0]
    parts = [entry for each in sorted(public) if (entry := _entry(each, getattr(module, each)))]
    return "\n".join([f"## labkit.{name}\n\n{question}\n", *parts])


def _made_in(value: object, module: str) -> bool:
    return inspect.isfunction(value) and value.__module__ == module and not value.__name__.startswith("_")


def _entry(name: str, value: object) -> str:
    """Return a heading and the stub of a function or a class; "" for what is a value and says nothing of itself."""
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        return ""
    head = f"class {name}" if inspect.isclass(value) else f"def {name}"
    return f"### {name}\n\n```python\n{head}{_signature(value)}:\n{_documented(value, 4)}{_methods(value)}```\n"


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
    if inspect.isclass(value) and (issubclass(value, Enum) or value.__init__ is object.__init__):
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


def main() -> int:
    """Write the page, or check it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
        return 0
    return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)


if __name__ == "__main__":
    sys.exit(main())
