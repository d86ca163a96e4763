"""Pictures of the README: a moving slider, a failed check, a report and the page of a class.

`make pictures` runs it. Chromium takes the pictures in both themes, from a page of `labkit.site`
with the outputs of a notebook and from pages of reports. The class is an example: references and
known mistakes of lesson 06 as answers of eight learners, graded as any others are.
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
# How long the slider stays at an exponent, in milliseconds; on its way up it rests at RESTS.
STEP_MS = 130
REST_MS = 1600
RESTS = (0, 10, 16)
# Hides what surrounds the slider.
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
    """Return the result of a check of a known mistake."""
    mistakes = {mistake.name: mistake for mistake in EXERCISES["numbers.decode"].mistakes}
    return check("numbers.decode", mistakes["forgets subnormals"].answer)


def training_report() -> Any:
    """Return the report of a training in FP16 without a loss scale, whose gradients underflow."""
    run = TrainingRun(TASKS["segmentation_small"], RECIPES["FP16"])
    with watch(run.engine.model, every=10) as watcher:
        for _ in range(30):
            run.step()
    return watcher.report()


def class_page(folder: Path) -> bytes:
    """Return the page of an example class: eight learners of lesson 06, some with a mistake."""
    ids = ("scaling.static_step", "scaling.unscale", "scaling.advance", "scaling.order")
    rows = []
    for learner in range(LEARNERS):
        for i, id in enumerate(ids):
            exercise = EXERCISES[id]
            answer = exercise.reference
            # Two answers in seven are wrong, spread over learners and exercises.
            if (learner * 3 + i * 5) % 7 < 2:
                answer = exercise.mistakes[(learner // 3) % 2].answer
            cases = grading_cases(exercise, SEED)
            grade = judge(cases, answers_of(cases, answer))
            row = GradeRow(
                f"learner {learner + 1}",
                "06",
                id,
                grade.points,
                grade.out_of,
                grade.reason,
                SEED,
                as_json(grade),
            )
            rows.append(row)
    journals = [_journal(folder / f"{k}.jsonl", k, ids) for k in range(LEARNERS)]
    return report(marks_of(rows, {}, 0, {}), journals)


def _journal(path: Path, learner: int, ids: tuple[str, ...]) -> Path:
    """Write the journal of a learner of the example class, and return its path.

    It has two checks of each exercise, the first without points, and one prediction.
    """
    lines: list[dict[str, Any]] = []
    for i, id in enumerate(ids):
        minutes_to_solve = 3 + (learner * 5 + i * 3) % 11
        for points, minute in ((0, 0), (4, minutes_to_solve)):
            when = f"2026-01-{10 + i}T10:{minute:02}:00+00:00"
            lines.append({"kind": "exercise", "id": id, "points": points, "when": when})
    guesses = list(predictions()["scaling.order"].choices)
    guess = guesses[learner % len(guesses)]
    lines.append({"kind": "prediction", "id": "scaling.order", "answer": guess})
    text = "".join(json.dumps({"answer": "", **line}) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def notebook() -> Any:
    """Return a notebook with two outputs: the slider and the failed check."""
    slider_data = {
        # A notebook holds pictures in base64.
        kind: base64.b64encode(data).decode() if isinstance(data, bytes) else data
        for kind, data in slider()._repr_mimebundle_()[0].items()
    }
    check_data = {"text/html": failed_check()._repr_html_()}
    cells = []
    for id, data in (("slider", slider_data), ("check", check_data)):
        output = nbformat.v4.new_output("display_data", data=data)
        cells.append(nbformat.v4.new_code_cell("", id=id, outputs=[output]))
    return nbformat.v4.new_notebook(cells=cells)


def frames(page: Any) -> Iterator[tuple[Image.Image, int]]:
    """Yield pictures of a slider that moves from 2^0 to 2^16 and back, with durations in ms."""
    widget = page.locator("[data-widget]")
    slider_input = widget.locator("input[type=range]").first
    up = [(exponent, REST_MS if exponent in RESTS else STEP_MS) for exponent in range(17)]
    down = [(exponent, STEP_MS) for exponent in range(15, 0, -1)]
    for exponent, milliseconds in up + down:
        slider_input.fill(str(exponent))
        # without the outline of the focus
        slider_input.evaluate("input => input.blur()")
        picture = Image.open(io.BytesIO(widget.screenshot())).convert("RGB")
        yield picture, milliseconds


def picture_outputs(page: Any, theme: str) -> None:
    """Write the pictures of the outputs on a page of the site: the check and the moving slider."""
    page.add_style_tag(content=ALONE)
    page.locator("#check .site-html").screenshot(path=IMAGES / f"check-{theme}.png")
    pictures, durations = zip(*frames(page), strict=True)
    pictures[0].save(
        IMAGES / f"slider-{theme}.webp",
        save_all=True,
        append_images=pictures[1:],
        duration=list(durations),
        loop=0,
        quality=70,
        method=6,
    )


def main() -> None:
    """Write the pictures into notebooks/images."""
    LabWidget.for_pages = True
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch, chromium.running() as browser:
        folder = Path(scratch)
        write_site(folder / "site", {"pictures": notebook()})
        (folder / "class.html").write_bytes(class_page(folder))
        training_report().save(folder / "watch")
        (watch_page,) = (folder / "watch").glob("*.html")
        # Name, page, and the height at which the picture ends, in pixels.
        reports = (("class", folder / "class.html", 645), ("watch", watch_page, 785))
        for theme in THEMES:
            look: dict[str, Any] = {"color_scheme": theme, "device_scale_factor": 1.5}
            page = browser.new_page(viewport={"width": 860, "height": 900}, **look)
            page.goto((folder / "site" / "pictures.html").as_uri())
            picture_outputs(page, theme)
            for name, path, height in reports:
                page = browser.new_page(viewport={"width": 980, "height": height}, **look)
                page.goto(path.as_uri())
                page.screenshot(path=IMAGES / f"{name}-{theme}.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
