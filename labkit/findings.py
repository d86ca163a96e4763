"""Findings and reports of a check: subject, status, observation and remedy.

A check returns a CheckReport, which is text in a terminal and a table in a notebook. A finding that
is not ok always has a remedy.

This module imports the standard library only, and is not part of labkit.instrument: `labkit check`
uses it to report that torch is missing or broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from html import escape


class Status(StrEnum):
    """Status of a finding.

    Its value is the word on display, so that no meaning depends on colour alone.
    """

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


def counted(count: int, noun: str) -> str:
    """Return a count and its noun, in the plural unless the count is 1.

    >>> counted(1, "step"), counted(1000, "step")
    ('1 step', '1,000 steps')
    """
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def ratio_text(ratio: float) -> str:
    """Return a ratio with two digits, from 10 on as a whole number.

    >>> ratio_text(0.314), ratio_text(2.0), ratio_text(1234.5)
    ('0.31', '2', '1,234')
    """
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


# JupyterLab's theme variables, each with a fallback for hosts that have none. (Docs: JupyterLab,
# CSS patterns.)
COLOURS = {
    Status.OK: "var(--jp-success-color1, #388e3c)",
    Status.WARN: "var(--jp-warn-color1, #f57c00)",
    Status.BAD: "var(--jp-error-color1, #d32f2f)",
}
SIGNS = {Status.OK: "✓", Status.WARN: "!", Status.BAD: "✗"}


@dataclass(frozen=True)
class Finding:
    """The result of checking one subject.

    Attributes:
        name: the subject, in a word or two.
        status: ok, warn (the lab works, but not as well as it could) or bad (something will not
            work).
        what: the observation, with numbers and versions.
        remedy: what to do; empty only for a finding that is ok.
        line: file and line of the user's code, if known.
        layer: a layer or parameter of the model; "" for all.
        step: the first step of a training that shows it.
        faults: names of faults that `labkit explain` shows with the same symptom.

    Raises:
        ValueError: the status is not ok and there is no remedy.

    >>> Finding("disk", Status.BAD, "full")
    Traceback (most recent call last):
    ...
    ValueError: the finding 'disk' is bad and has no remedy; say what the reader should do
    """

    name: str
    status: Status
    what: str
    remedy: str = ""
    line: str = ""
    layer: str = ""
    step: int | None = None
    faults: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The line and the layer, as far as they are known."""
        return ", ".join(filter(None, (self.line, self.layer and f"in {self.layer}")))

    @property
    def located(self) -> str:
        """The observation, with its place."""
        return f"{self.where}: {self.what}" if self.where else self.what

    @property
    def to_do(self) -> str:
        """The remedy, and the faults to compare with."""
        if not self.faults:
            return self.remedy
        return f"{self.remedy} (labkit explain {' | '.join(self.faults)})"

    def __post_init__(self) -> None:
        if self.status is not Status.OK and not self.remedy:
            raise ValueError(
                f"the finding {self.name!r} is {self.status} and has no remedy; say what the "
                "reader should do"
            )


@dataclass(frozen=True)
class CheckReport:
    """The findings of a check, in the order of checking: text when printed, a table in a notebook.

    >>> print(CheckReport((Finding("disk", Status.OK, "20 GiB free"),)))
    ✓ ok    disk  20 GiB free
    All well.
    """

    findings: tuple[Finding, ...]
    if_warned: str = "The lab works. Optional improvements"
    if_bad: str = "To do before the lab works"

    @property
    def healthy(self) -> bool:
        """Whether no finding is bad; warnings do not count."""
        return not any(self.of(Status.BAD))

    def of(self, status: Status) -> Iterator[Finding]:
        """Yield the findings with this status."""
        return (finding for finding in self.findings if finding.status is status)

    @property
    def summary(self) -> str:
        """One sentence with the counts."""
        count = len(self.findings)
        bad = len(list(self.of(Status.BAD)))
        warned = len(list(self.of(Status.WARN)))
        if bad:
            return f"{self.if_bad}: {bad} of {count}, marked {SIGNS[Status.BAD]} bad."
        if warned:
            return f"{self.if_warned}: {warned} of {count}."
        if not count:
            return "Nothing was checked."
        return f"All {count} well." if count > 1 else "All well."

    def __str__(self) -> str:
        """Return the report as lines of text, each remedy under its finding."""
        width = max((len(finding.name) for finding in self.findings), default=0)
        lines = []
        for finding in self.findings:
            lines.append(
                f"{SIGNS[finding.status]} {finding.status:<4}  {finding.name:<{width}}  "
                f"{finding.located}"
            )
            if finding.remedy:
                lines.append(f"{'':8}{'':{width}}  -> {finding.to_do}")
        return "\n".join([*lines, self.summary])

    def _repr_html_(self) -> str:
        """Return the report as an HTML table in the colours of the notebook's theme."""
        cell = (
            "text-align: left; vertical-align: top; padding: 2px 12px 2px 0; white-space: normal;"
        )
        rows = []
        for finding in self.findings:
            remedy = (
                f"<br><strong>What to do:</strong> {escape(finding.to_do)}"
                if finding.remedy
                else ""
            )
            rows.append(
                f'<tr><td style="{cell} white-space: nowrap; color: {COLOURS[finding.status]}">'
                f"<strong>{SIGNS[finding.status]} {finding.status}</strong></td>"
                f'<th scope="row" style="{cell} white-space: nowrap">{escape(finding.name)}</th>'
                f'<td style="{cell}">{escape(finding.located)}{remedy}</td></tr>'
            )
        ink = (
            "color: var(--jp-ui-font-color1, inherit); font-family: var(--jp-ui-font-family, "
            "sans-serif)"
        )
        return (
            f'<table style="{ink}"><caption style="caption-side: bottom; text-align: left; color: '
            f'inherit">{escape(self.summary)}</caption>'
            f"<tbody>{''.join(rows)}</tbody></table>"
        )
