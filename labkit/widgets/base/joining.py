"""Joining of modules that import each other into one script, in the order of their imports.

A browser loads no module from a page that was opened as a local file, and a saved notebook holds
its script as text. So the modules of a widget reach the page as one script with one scope. Their
imports, exports and declarations use a small part of JavaScript's syntax, at the beginning of a
line:

    import { button, slider } from "../base/controls.js";
    export function name() {}        or const, let, class, async function
    export default value;

Nothing is renamed: a name means the same in each module, so that a reader can search for it.
Comments and empty lines are removed, also from a template literal of several lines.

Invariant: a module comes once, before those that import it; a name is declared by one module.

Source: ECMA-262, section 16.2 (modules).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FOLDERS = files("labkit.widgets")
SHARED = "base"

# Comments on lines of their own are removed: they would be a third of a saved notebook.
DOCUMENTATION = re.compile(r"^[ \t]*/\*\*(?:(?!\*/).)*\*/[ \t]*\n", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^[ \t]*//.*\n|^[ \t]*\n", re.MULTILINE)
# A statement of import up to its semicolon, also over several lines.
IMPORT = re.compile(r'^import\b([^;"\']*)["\']([^"\']+)["\'];?[ \t]*\n?', re.MULTILINE)
# The part of an import between `import` and the path: { a, b } from
NAMED = re.compile(r"\s*\{((?:\s*[\w$]+\s*,)*\s*[\w$]*\s*)\}\s*from\s*")
# A declaration at the beginning of a line, which is one at the top level of a formatted file.
DECLARATION = re.compile(
    r"^(?P<export>export\s+)?(?:async\s+)?(?:function\*?|const|let|class)\s+(?P<name>[\w$]+)",
    re.MULTILINE,
)
# Exports that are neither a declaration nor the default: `export { name }`, `export * from`.
OTHER_EXPORT = re.compile(
    r"^export\s+(?!default\b|async\s+function\b|function\b|(?:const|let|class)\s+[\w$]).*",
    re.MULTILINE,
)


class JoinError(Exception):
    """Modules that cannot be joined: the message names the file, what is wrong, and what to do."""


@dataclass(frozen=True)
class Module:
    """A file of JavaScript.

    Attributes:
        path: The path below `labkit/widgets/`.
        text: The source without imports; exported declarations are plain ones.
        declares: The names declared at the top level.
        exports: The declared names that other modules may import.
        imports: Path of another module -> the names imported from it.
    """

    path: str
    text: str
    declares: tuple[str, ...]
    exports: frozenset[str]
    imports: Mapping[str, tuple[str, ...]]

    @property
    def folder(self) -> str:
        """The folder of the module."""
        return posixpath.dirname(self.path)


def parse(path: str, source: str) -> Module:
    """Return the module of a source.

    Raises:
        JoinError: An import or an export has a form that cannot be joined.

    >>> made = parse("bits/view.js", 'import { h } from "../base/elements.js";')
    >>> made.imports, made.text
    ({'base/elements.js': ('h',)}, '')
    """
    imports: dict[str, tuple[str, ...]] = {}
    for statement in IMPORT.finditer(source):
        braces = NAMED.fullmatch(statement[1])
        if braces is None:
            raise JoinError(
                f'{path}: expected import {{ name }} from "./file.js", got {statement[0].strip()}'
            )
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), statement[2]))
        names = tuple(name.strip() for name in braces[1].split(",") if name.strip())
        imports[target] = imports.get(target, ()) + names
    other = OTHER_EXPORT.search(source)
    if other is not None:
        raise JoinError(
            f"{path}: expected export before a declaration, got {other[0]}; "
            "export a name where it is declared"
        )
    declarations = list(DECLARATION.finditer(source))
    text = COMMENT.sub("", DOCUMENTATION.sub("", IMPORT.sub("", source)))
    text = re.sub(r"^export\s+(?!default\b)", "", text, flags=re.MULTILINE)
    return Module(
        path,
        text,
        tuple(declaration["name"] for declaration in declarations),
        frozenset(declaration["name"] for declaration in declarations if declaration["export"]),
        imports,
    )


@cache
def read(path: str) -> Module:
    """Return a module of the widgets.

    Raises:
        JoinError: The file does not exist or cannot be joined.
    """
    file = FOLDERS / path
    if not file.is_file():
        raise JoinError(f"labkit/widgets/{path}: there is no such file")
    return parse(path, file.read_text(encoding="utf-8"))


def in_order(entries: Iterable[str], find: Callable[[str], Module] = read) -> list[Module]:
    """Return the modules that the entries need, each after those that it imports.

    Args:
        entries: Paths of modules. Their order is kept where imports allow it.
        find: The function from a path to its module; by default it reads the widgets' files.

    Raises:
        JoinError: A module or an export is missing, modules import each other in a circle, or two
            modules declare one name.
    """
    ordered: dict[str, Module] = {}

    def visit(path: str, importers: tuple[str, ...]) -> None:
        if path in ordered:
            return
        if path in importers:
            circle = " -> ".join((*importers[importers.index(path) :], path))
            raise JoinError(f"modules import each other in a circle: {circle}")
        module = _find_for(importers, path, find)
        for target, names in module.imports.items():
            visit(target, (*importers, path))
            _require_exports(module, ordered[target], names)
        ordered[path] = module

    for entry in entries:
        visit(entry, ())
    _require_one_owner(ordered.values())
    return list(ordered.values())


def _find_for(importers: tuple[str, ...], path: str, find: Callable[[str], Module]) -> Module:
    """Return a module; an error names the module that imports it, the last of `importers`."""
    try:
        return find(path)
    except JoinError as error:
        if not importers:
            raise
        raise JoinError(f"{importers[-1]} imports {path}: {error}") from error


def _require_exports(module: Module, target: Module, names: Collection[str]) -> None:
    for name in names:
        if name not in target.exports:
            declared = name in target.declares
            remedy = f"declare it with export in {target.path}" if declared else "correct its name"
            raise JoinError(
                f"{module.path} imports {name}, which {target.path} does not export: {remedy}"
            )


def _require_one_owner(modules: Iterable[Module]) -> None:
    owners: dict[str, str] = {}
    for module in modules:
        for name in module.declares:
            if name in owners:
                raise JoinError(
                    f"{owners[name]} and {module.path} both declare {name}: "
                    "they share one scope in the page, so rename one of them"
                )
            owners[name] = module.path


def joined(modules: Iterable[Module]) -> str:
    """Return modules as one script."""
    return "\n".join(module.text for module in modules)


@cache
def shared_modules() -> tuple[Module, ...]:
    """Return all modules of `base/`, in order."""
    names = sorted(file.name for file in (FOLDERS / SHARED).iterdir() if file.name.endswith(".js"))
    return tuple(in_order(f"{SHARED}/{name}" for name in names))


@cache
def modules_of(folder: str) -> tuple[Module, ...]:
    """Return the modules of a widget: all that its view.js needs, in order.

    Raises:
        FileNotFoundError: The folder has no view.js.
        JoinError: Its modules cannot be joined.
    """
    if not (FOLDERS / folder / "view.js").is_file():
        raise FileNotFoundError(
            f"labkit/widgets/{folder}/view.js: expected the file that exports the widget, "
            "found none"
        )
    return tuple(in_order([f"{folder}/view.js"]))
