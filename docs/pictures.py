"""Pictures of the README, from a real browser: a slider, a failed check, a report, a class.

Idea: a small site (`labkit.site`) shows the outputs of a notebook; a Chromium takes pictures of
them in both themes. The class is an example: right answers and known mistakes of lesson 06, graded
as any others are.

    make pictures
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import torch
from PIL import Image

from labkit.amp import RECIPES
from labkit.classroom.class_pages import report
from labkit.classroom.marks import marks_of
from labkit.grading import EXERCISES, check, judge
from labkit.grading.grade import as_json
from labkit.grading.judge import answers_of, grading_cases
from labkit.grading.results import GradeRow
from labkit.instrument import watch
from labkit.site import write_site
from labkit.train import TASKS, TrainingRun, gradient_snapshot
from labkit.widgets import UnderflowHistogram, predictions
from labkit.widgets.base.widget import LabWidget
from tests.browser import chromium

IMAGES = Path(__file__).parents[1] / "notebooks" / "images"
THEMES = ("light", "dark")
SEED = 1
LEARNERS = 8
# a step of the slider, and a pause at both ends
STEP_MS = 130
REST_MS = 1600
# The picture is about the slider: what stands around it in a lesson is left out.
ALONE = (
    ".site-header, .lk-tour, .uf-layers, .uf-note { display: none } "
    "[data-widget] { padding: 4px 12px }"
)


def slider() -> UnderflowHistogram:
    """Return the first picture of lesson 00."""
    return UnderflowHistogram(
        gradient_snapshot(TrainingRun(TASKS["segmentation_small"], RECIPES["FP16"])), log2_scale=0
    )


def failed_check() -> Any:
    """Return the answer to a submission that makes a known mistake."""
    mistakes = EXERCISES["numbers.decode"].mistakes
    return check(
        "numbers.decode", next(m.answer for m in mistakes if m.name == "forgets subnormals")
    )


def watched() -> Any:
    """Return the report of a training in FP16 without a loss scale, on many pixels."""
    run = TrainingRun(TASKS["segmentation_small"], RECIPES["FP16"])
    with watch(run.engine.model, every=10) as w:
        for _ in range(30):
            run.step()
    return w.report()


def class_page(folder: Path) -> bytes:
    """Return the page of an example class: eight learners of lesson 06, some with a mistake."""
    ids = ("scaling.static_step", "scaling.unscale", "scaling.advance", "scaling.order")
    rows = []
    for learner in range(LEARNERS):
        for i, id in enumerate(ids):
            exercise = EXERCISES[id]
            wrong = (learner * 3 + i * 5) % 7 < 2
            answer = exercise.mistakes[(learner // 3) % 2].answer if wrong else exercise.reference
            cases = grading_cases(exercise, SEED)
            grade = judge(cases, answers_of(cases, answer))
            name = f"learner {learner + 1}"
            rows.append(
                GradeRow(
                    name, "06", id, grade.points, grade.out_of, grade.reason, SEED, as_json(grade)
                )
            )
    return report(
        marks_of(rows, {}, 0, {}),
        [_journal(folder / f"{k}.jsonl", k, ids) for k in range(LEARNERS)],
    )


def _journal(path: Path, learner: int, ids: tuple[str, ...]) -> Path:
    """Write when a learner of the example class checked answers, and what was predicted."""
    lines: list[dict[str, Any]] = []
    for i, id in enumerate(ids):
        for points, minute in ((0, 0), (4, 3 + (learner * 5 + i * 3) % 11)):
            when = f"2026-01-{10 + i}T10:{minute:02}:00+00:00"
            lines.append({"kind": "exercise", "id": id, "points": points, "when": when})
    guesses = list(predictions()["scaling.order"].choices)
    lines.append(
        {"kind": "prediction", "id": "scaling.order", "answer": guesses[learner % len(guesses)]}
    )
    path.write_text(
        "".join(json.dumps({"answer": "", **line}) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def notebook() -> Any:
    """Return a notebook whose outputs are pictured."""
    cells = []
    for id, shown in (("slider", slider()), ("check", failed_check())):
        data = (
            shown._repr_mimebundle_()[0]
            if isinstance(shown, LabWidget)
            else {"text/html": shown._repr_html_()}
        )
        plain = {
            kind: base64.b64encode(x).decode() if isinstance(x, bytes) else x
            for kind, x in data.items()
        }
        output = nbformat.v4.new_output("display_data", data=plain)
        cells.append(nbformat.v4.new_code_cell("", id=id, outputs=[output]))
    return nbformat.v4.new_notebook(cells=cells)


def frames(page: Any) -> Iterator[tuple[Image.Image, int]]:
    """Yield pictures of a slider that moves from 2^0 to 2^16 and back, with durations in ms."""
    widget = page.locator("[data-widget]")
    hand = widget.locator("input[type=range]").first
    way = [*range(17), *range(15, 0, -1)]
    for exponent in way:
        hand.fill(str(exponent))
        hand.evaluate("hand => hand.blur()")
        picture = Image.open(io.BytesIO(widget.screenshot())).convert("RGB")
        yield (
            picture,
            REST_MS if exponent in (0, 10, 16) and way.index(exponent) == exponent else STEP_MS,
        )


def main() -> None:
    """Write the pictures into notebooks/images."""
    LabWidget.for_pages = True
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch, chromium.running() as browser:
        folder = Path(scratch)
        write_site(folder / "site", {"pictures": notebook()})
        (folder / "class.html").write_bytes(class_page(folder))
        watched().save(folder / "watch")
        (watch_page,) = (folder / "watch").glob("*.html")
        for theme in THEMES:
            look: dict[str, Any] = {"color_scheme": theme, "device_scale_factor": 1.5}
            page = browser.new_page(viewport={"width": 860, "height": 900}, **look)
            page.goto((folder / "site" / "pictures.html").as_uri())
            page.add_style_tag(content=ALONE)
            page.locator("#check .site-html").screenshot(path=IMAGES / f"check-{theme}.png")
            first, *others = frames(page)
            first[0].save(
                IMAGES / f"slider-{theme}.webp",
                save_all=True,
                append_images=[picture for picture, _ in others],
                duration=[first[1], *(ms for _, ms in others)],
                loop=0,
                quality=70,
                method=6,
            )
            for name, path, height in (
                ("class", folder / "class.html", 645),
                ("watch", watch_page, 785),
            ):
                page = browser.new_page(viewport={"width": 980, "height": height}, **look)
                page.goto(path.as_uri())
                page.screenshot(path=IMAGES / f"{name}-{theme}.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
