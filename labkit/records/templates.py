"""HTML from templates: Jinja2 with autoescape, one environment for the whole lab.

A template is a file `*.html.jinja` beside the module that renders it. Values are escaped unless
they are a `Markup`, which `render` and `markup` return.

Invariant: a name that a template uses and does not get raises an error.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@cache
def _environment() -> Environment:
    # Imported here, since most processes of the lab make no page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("labkit", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, /, **values: object) -> Markup:
    """Return the HTML of a template.

    Args:
        template: Its path in the package labkit, as "site/page.html.jinja".
        **values: The variables of the template, by name.
    """
    return markup(_environment().get_template(template).render(values))


def markup(html: str) -> Markup:
    """Mark a text as HTML, which a template inserts without escaping.

    The text must not hold anything that a learner or a model named, unless it is escaped.
    """
    from markupsafe import Markup

    return Markup(html)


def script_json(content: object) -> Markup:
    r"""Return a value as JSON, as the text of a `<script>` element.

    Raises:
        ValueError: If the value holds inf or NaN.

    >>> print(script_json({"end": "</script>"}))
    {"end":"\u003c/script>"}
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    # "</script" would end the element, and "<!--<script" would keep its end tag from ending it.
    return markup(text.replace("<", r"\u003c"))
