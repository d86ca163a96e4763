"""Rules of plain English for the project's prose: `python -m tests.prose [PATH ...]` prints what
breaks them.

Prose is what people read: docstrings, messages, Markdown, the text of lessons. Names of functions
and classes have one rule of their own. CONTRIBUTING.md says how to write; these are only the faults
that a program can find.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md", "data/hosts.md")
WHOLE = ("labkit", "labkit_lessons", "docs", *PAGES)
LONGEST = 35
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

WORDS = {
    r"(is|are|was|were|be|been|being) (never |not |then |also |first )?(told|asked|said)\b": "a passive",
    r"\b(it|that|which) (was|is) given\b": "write 'got' in a message, 'passed' elsewhere",
    r"\bwhoever\b|\bnobody\b|\bfor who\b": "name the reader, the caller or the user",
    r"\b(hears?|heard) (of|from|what|it|them|every|each)\b": "observes, receives",
    r"\bfor ever\b": "permanently, without end",
    r"\b(must|may|should|can) (it|they) be\?": "ask in plain order",
    r"\bwho (adds|derives|asks|calls|draws)\b": "say 'which' or 'that'",
    r"\bwhat is (there|given|left|kept|asked|wanted|said|told)\b": "name the thing",
    r"\bcomes? of (it|them|each|a|the)\b|\bbecomes? of\b": "results from, happens to",
    r"\btwice is as good as once\b": "idempotent",
    r"\b(at|through) the door\b": "name the place",
    r"\bby hearsay\b|\bon hearsay\b": "reported",
}
QUESTION = "a question as the first line; write a noun phrase or an imperative"
DIALECT = re.compile(
    r"_?(told|said|asked|hears?|heard|left|came_of|comes_of|there|here|shown|written|named|given|kept|wanted|taken|made|seen|stands|holds|turns|together)"
)
NAME = "a name that does not say what the function does"

TEST_NAME = re.compile(
    r"_(told|said|asked|nobody|whoever|hears|heard|came_of|hearsay|for_ever|stands)(_|$)"
)

# At most twenty, each a whole sentence that is right as it is.
EXCEPTIONS = {
    "says what is kept",  # names of known mistakes: answers that are stored refer to them
    "casts what is kept",
    "scale too high and nobody looks",
}


class Prose(NamedTuple):
    """A passage: where it begins, its text, and whether it is a docstring."""

    line: int
    text: str
    docstring: bool = False


class Fault(NamedTuple):
    path: str
    line: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.sentence[:160]}"


def passages(path: Path) -> Iterator[Prose]:
    text = path.read_text(encoding="utf-8")
    match path.suffix:
        case ".py":
            yield from of_python(ast.parse(text))
            yield from of_cells(text)
        case ".md":
            yield from of_markdown(text)
        case ".toml":
            yield from (Prose(1, part) for part in strings(tomllib.loads(text)))


def of_python(tree: ast.Module) -> Iterator[Prose]:
    """Yield docstrings and other strings of four words or more; a field of an f-string counts as
    one word.
    """
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield Prose(
                node.body[0].lineno, re.sub(r"(?m)^ *(>>>|\.\.\.) .*$", "", text), docstring=True
            )
        if isinstance(node, ast.JoinedStr):
            docstrings.update(id(part) for part in node.values)
            parts = (
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
            yield Prose(node.lineno, "".join(parts))
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            code = re.search(r"^\s*(import|from|def|class|with) |[{};]\n", node.value, re.MULTILINE)
            if len(node.value.split()) > 3 and not code:
                yield Prose(node.lineno, node.value)


def of_cells(text: str) -> Iterator[Prose]:
    """Yield the Markdown cells of a lesson in jupytext's percent format."""
    for match in re.finditer(r"(?m)^# %% \[markdown\].*\n((?:#.*\n)+)", text):
        first = text.count("\n", 0, match.start(1)) + 1
        cell = re.sub(r"(?m)^# ?", "", match.group(1))
        yield from (Prose(first + part.line - 1, part.text) for part in of_markdown(cell))


def of_markdown(text: str) -> Iterator[Prose]:
    """Yield paragraphs, items of lists and cells of tables, without code, formulas and the
    addresses of links.
    """
    text = re.sub(
        r"(?ms)^```.*?^```|\$\$.*?\$\$", lambda match: "\n" * match.group().count("\n"), text
    )
    text = re.sub(r"\]\([^)]*\)", "]", text)
    start, held = 1, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if re.match(r"\s*($|[-*|#>]|\d+\. )", line):
            yield from (Prose(start, cell) for cell in held.split(" | ") if cell.strip())
            start, held = number, re.sub(r"^\s*([-*#>|]+|\d+\.) ?", "", line)
        else:
            held += "\n" + line


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def sentences(text: str) -> list[str]:
    """Split a passage at its full stops, its blank lines and its lists."""
    # a row of a table: its first column
    text = re.sub(r"(?m)^ *[\w.*]+(, [\w.*]+)* {2,}", "\n\n", text)
    parts = re.split(
        r"(?<=[.?!])[\"')*_`]*\s+(?=[\"'(*_`A-Z0-9])|\n\s*\n|\n\s*[-*] |\n(?= {4})|: *(?=\n)", text
    )
    return [" ".join(part.split()) for part in parts if part and len(part.split()) > 1]


def faults(path: Path) -> Iterator[Fault]:
    """Yield what breaks a rule in one file."""
    name = path.relative_to(ROOT).as_posix()
    for passage in passages(path):
        for place, sentence in enumerate(sentences(passage.text)):
            rules = [
                rule
                for pattern, rule in WORDS.items()
                if re.search(pattern, sentence, re.IGNORECASE)
            ]
            if passage.docstring and place == 0 and sentence.endswith("?"):
                rules.append(QUESTION)
            is_text = re.search(r"[.,:;?!]", sentence) and not sentence.startswith("Source: ")
            if is_text and (length := len(re.sub(r"`[^`]*`", "code", sentence).split())) > LONGEST:
                rules.append(f"{length} words in one sentence; at most {LONGEST}")
            yield from (
                Fault(name, passage.line, rule, sentence)
                for rule in rules
                if sentence not in EXCEPTIONS
            )
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and DIALECT.fullmatch(node.name):
                if (ast.get_docstring(node) or "").startswith("Deprecated name of"):
                    continue
                yield Fault(name, node.lineno, NAME, node.name)


def test_names(path: Path) -> Iterator[Fault]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name.startswith("test_")
            and TEST_NAME.search(node.name)
        ):
            yield Fault(path.name, node.lineno, NAME, node.name)


def files(paths: list[str]) -> list[Path]:
    found = [ROOT / path for path in paths]
    below = [
        file for path in found for file in (sorted(path.rglob("*.*")) if path.is_dir() else [path])
    ]
    return [
        file
        for file in below
        if file.suffix in {".py", ".md", ".toml"} and ".ipynb_checkpoints" not in file.parts
    ]


if __name__ == "__main__":
    broken = [fault for file in files(sys.argv[1:] or list(WHOLE)) for fault in faults(file)]
    print(*broken, f"{len(broken)} faults", sep="\n")
    sys.exit(bool(broken))
