"""How does a teacher's page look? One file that needs nothing else: light or dark as the reader's system, and on paper.

Invariant: the page loads nothing, and all that is not markup was escaped by whoever made the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --line: #bbb; --soft: #f4f4f4; --good: #1b7a36;
        --bad: #b3261e; --warn: #8a5200; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #151515; --line: #555; --soft: #222;
        --good: #7bd88f; --bad: #ff9a92; --warn: #ffc266; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60em;
       margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: .5em 0; } th, td { text-align: left; vertical-align: top;
       padding: .2em 1em .2em 0; border-bottom: 1px solid var(--line); }
pre { background: var(--soft); padding: .6em; overflow-x: auto; white-space: pre-wrap; }
pre, code, td.value { font-family: ui-monospace, monospace; font-size: 14px; } td.value { white-space: pre-wrap; }
section { border-top: 2px solid var(--line); margin-top: 1.5em; } .good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; } .warn { border-left: 4px solid var(--warn); padding-left: .6em; }
@media print { :root { --ink: #000; --paper: #fff; --soft: #f4f4f4; --line: #999; --good: #14602a; --bad: #9b1c15;
       --warn: #8a5200; } body { margin: 0; max-width: none; font-size: 11pt; } section { break-inside: avoid; }
       pre { break-inside: auto; } }
"""


def page(title: str, body: str) -> bytes:
    """Return a whole page; `body` is HTML."""
    name = escape(title)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}</title>'
    text = f"""<!doctype html>
<html lang="en"><head>{head}<style>{_STYLE}</style></head>
<body><h1>{name}</h1>
{body}
</body></html>
"""
    return text.encode("utf-8", errors="backslashreplace")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table of texts, escaped; "" where there is no row.

    >>> table(("a",), [("<b>",)])
    '<table><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><tr>{names}</tr>{cells}</table>" if rows else ""
