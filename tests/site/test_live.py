"""Exercises that a page checks in a real Chromium: verdicts, limits and isolation."""

import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import nbformat
import pytest

from labkit.classroom.live import PAGE_MODULES, live_exercises, page_modules
from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.course import learners_notebook, lessons
from labkit.course.notebook import text_of
from labkit.grading import EXERCISES
from labkit.grading.grade import as_html
from labkit.grading.judge import judge, known_answers, visible_cases
from labkit.grading.live import answer_in_page, cells_of
from labkit.grading.program import program_of
from labkit.grading.solutions import Solutions
from labkit.site import LiveFiles, PyodideError, address_of, pyodide_of_npm, server_of, write_site
from tests.grading import cases as lesson_cases
from tests.mutants.planted import in_code
from tests.slowness import slowness

# With the value 1, a test without Pyodide fails; otherwise it is skipped.
REQUIRE = "LABKIT_REQUIRE_PYODIDE"
ULP = "numbers.ulp"
# A wrong answer to it, with a known mistake: the same distance everywhere.
EPSILON = "def my_ulp(x, significand_bits, emin):\n    return 2.0**-significand_bits\n"
# JavaScript: run an answer in the page's Python; `said` is what it printed.
RUN = """
async ([id, source, seconds]) => {
  const prepare = async () => ({
    form: await text(`live/${id}.json`),
    notebook: JSON.parse(await text(`live/${lessonOf(id)}.ipynb`)),
    answers: { [id]: source },
  });
  const said = [];
  const shown = { progress() {}, ready() {}, output: (words) => said.push(words) };
  try {
    const answer = await python.run(prepare, seconds, shown);
    return { ...answer, said: said.join("") };
  } catch (error) {
    return { ended: error.message, said: said.join("") };
  }
}
"""


@cache
def pyodide() -> dict[str, bytes]:
    """Return the files of Pyodide. Without them, skip the test, or fail it if REQUIRE is set."""
    try:
        return pyodide_of_npm()
    except PyodideError as error:
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{REQUIRE}=1, but {error}", pytrace=False)
        pytest.skip(str(error))


def write_pages(folder: Path, numbers: tuple[str, ...]) -> Path:
    """Write lessons, as they are handed out, as pages that check exercises.

    Args:
        folder: The folder of the pages.
        numbers: Numbers of the lessons, such as "01"; all lessons if there are none.
    """
    chosen = [each for each in lessons() if not numbers or each.name.split("_")[0] in numbers]
    forms = live_exercises(chosen).forms
    handed_out = {lesson.name: learners_notebook(lesson) for lesson in chosen}
    read: Callable[[str, int], Any] = nbformat.reads
    notebooks = {name: read(text_of(one), 4) for name, one in handed_out.items()}
    write_site(folder, notebooks, LiveFiles(forms, handed_out, page_modules(), pyodide()))
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of lessons 00 and 01 as pages."""
    return write_pages(tmp_path_factory.mktemp("live") / "site", ("00", "01"))


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Serve in the background; yield the address of the folder."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield address_of(server).rpartition("/")[0]
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the pages."""
    with serving(server_of(site)) as address:
        yield address


@contextmanager
def visit(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """Open a page; at the end, require that nothing failed and no request left its server."""
    context = browser.new_context(**options)
    page = context.new_page()
    problems = []
    page.set_default_timeout(60_000 * slowness())
    page.on("pageerror", lambda error: problems.append(str(error)))
    root = address.rpartition("/")[0]
    # The worker's text is a blob of this page.
    own = (root, f"blob:{root}", "data:")

    def require_own(request: Any) -> None:
        if not request.url.startswith(own):
            problems.append(request.url)

    context.on("request", require_own)
    try:
        page.goto(address)
        yield page
    finally:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def opened(browser: Any, served: str) -> Iterator[Any]:
    """A page of lesson 01 that several tests use, with a Python that is warm after the first."""
    with visit(browser, f"{served}/01_numbers.html") as page:
        yield page


def answered(page: Any, id: str, source: str, seconds: float = 0) -> dict[str, Any]:
    """Return what the page's Python says of an answer.

    Args:
        page: The page.
        id: The exercise.
        source: The answer.
        seconds: The time limit; 0 for one that no healthy answer reaches.
    """
    limit = seconds or 30 * slowness()
    result: dict[str, Any] = page.evaluate(RUN, [id, source, limit])
    return result


def exercise(page: Any, id: str = ULP) -> Any:
    """Return the place of an exercise in a page."""
    return page.locator(f"[data-exercise='{id}']")


def run(page: Any, source: str, id: str = ULP) -> Any:
    """Type an answer, run its checks, and return its exercise once they have ended."""
    place = exercise(page, id)
    place.locator("textarea").fill(source)
    place.get_by_role("button", name="Run the checks").click()
    ended(place)
    return place


def ended(place: Any) -> None:
    """Wait until a run has ended: its button to stop is disabled."""
    place.locator("button:disabled", has_text="Stop").wait_for()


def solution(id: str) -> str:
    """Return the reference solution of an exercise."""
    (lesson,) = [lesson for lesson in lessons() if lesson.name == EXERCISES[id].lesson]
    return Solutions(lesson.text).source(id)


def text_in_a_page(page: Any, html: str) -> str:
    """Return the text of HTML as a page shows it."""
    text: str = page.evaluate(
        "(html) => { const made = document.createElement('div'); made.innerHTML = html;"
        "document.body.append(made); const text = made.innerText; made.remove(); return text; }",
        html,
    )
    return text


def test_a_wrong_answer_gets_the_picture_of_the_notebook(opened: Any) -> None:
    place = run(opened, EPSILON)
    by_name = {mistake.name: mistake for mistake in EXERCISES[ULP].mistakes}
    case_set = visible_cases(EXERCISES[ULP])
    grade = judge(case_set, known_answers(case_set, by_name["the same everywhere"].answer))
    picture = place.locator(".site-live-picture").inner_text()
    assert picture == text_in_a_page(opened, as_html(grade))


def test_a_wrong_answer_gets_its_known_mistake_and_points(opened: Any) -> None:
    place = run(opened, EPSILON)
    assert "A known mistake (the same everywhere)" in place.inner_text()
    assert place.locator(".site-live-status").inner_text() == "0 of 5 checks pass: 0 of 5 points."


def test_a_right_answer_counts(opened: Any) -> None:
    place = run(opened, solution(ULP))
    assert "Solved. 5 of 5 checks pass" in place.inner_text()
    assert "1 of 5 exercises solved" in opened.locator(".site-counted").inner_text()


def test_a_right_answer_stays_after_a_reload(opened: Any, served: str) -> None:
    run(opened, solution(ULP))
    page = opened.context.new_page()
    try:
        page.goto(f"{served}/01_numbers.html")
        page.reload()
        assert exercise(page).locator("textarea").input_value() == solution(ULP)
        assert "You have solved this exercise" in exercise(page).inner_text()
        page.goto(f"{served}/index.html")
        assert "1 of 5 exercises solved" in page.locator(".site-lessons").inner_text()
    finally:
        page.close()


def test_reset_brings_the_starter_back_and_undo_the_answer(opened: Any) -> None:
    place = exercise(opened, "numbers.bytes")
    area = place.locator("textarea")
    starter = area.input_value()
    assert "raise NotImplementedError" in starter
    area.fill("mine = 1")
    place.get_by_role("button", name="Reset").click()
    assert area.input_value() == starter
    assert opened.evaluate("namesOf('answer/code/numbers.bytes')") == []
    area.press("Control+z")
    assert area.input_value() == "mine = 1"


def test_an_endless_loop_is_stopped_and_the_next_run_answers(opened: Any) -> None:
    late = answered(opened, ULP, "while True: pass", seconds=0.5)
    assert late["ended"].startswith("Stopped after 0.5 s: the answer did not end.")
    assert answered(opened, ULP, solution(ULP))["solved"]


def test_stop_ends_the_loading_too_and_the_next_run_loads(browser: Any, served: str) -> None:
    with visit(browser, f"{served}/01_numbers.html") as page:
        place = exercise(page)
        place.get_by_role("button", name="Run the checks").click()
        place.get_by_role("button", name="Stop", exact=True).click()
        ended(place)
        assert place.locator(".site-live-status").inner_text() == "Stopped."
        assert "Solved" in run(page, solution(ULP)).inner_text()


def test_a_lost_server_gets_a_sentence_and_another_try(browser: Any, served: str) -> None:
    with visit(browser, f"{served}/01_numbers.html") as page:
        place = exercise(page)
        status = place.locator(".site-live-status")
        page.route("**/live/worker.js", lambda route: route.abort())
        place.get_by_role("button", name="Run the checks").click()
        ended(place)
        assert "could not load what it needs" in status.inner_text()
        page.unroute("**/live/worker.js")
        place.get_by_role("button", name="Run the checks").click()
        place.locator(".site-live-status", has_text="Python is loading:").wait_for()
        place.get_by_role("button", name="Stop", exact=True).click()
        ended(place)


def test_stop_ends_a_run(opened: Any) -> None:
    place = exercise(opened)
    place.locator("textarea").fill("print('begun')\nwhile True: pass")
    place.get_by_role("button", name="Run the checks").click()
    place.locator("pre.site-text", has_text="begun").wait_for()
    place.get_by_role("button", name="Stop", exact=True).click()
    ended(place)
    assert place.locator(".site-live-status").inner_text() == "Stopped."


@pytest.mark.parametrize(
    ("typed", "seconds"), [("", 10), ("2.5", 2.5), ("0", 10), ("-5", 1), ("1e9", 600)]
)
def test_a_time_limit_stays_within_its_bounds(opened: Any, typed: str, seconds: float) -> None:
    field = exercise(opened).get_by_label("Stop after")
    field.fill(typed)
    assert field.evaluate("timeLimitOf") == seconds


# Answer that cannot be checked -> a part of the sentence that explains why.
SENTENCES = {
    "import torch": "this page has no torch, only Python's own modules",
    "import labkit.formats": "labkit.formats is in the lab alone",
    "input()": "a function that uses its arguments alone, got a call of input()",
    "def my_ulp(x, y, z):\n    return my_ulp(x, y, z)": "RecursionError: maximum recursion depth",
    "full = bytearray(2**30)": "MemoryError: it needs more memory than it may use",
    "full = []\nwhile True: full.append(bytearray(2**20))": "MemoryError",
    "def my_ulp(:": "syntax error in line 1",
    "raise SystemExit": "its cell stopped with sys.exit()",
    "import threading\nthreading.Thread(target=print).start()": "can't start new thread",
    "my_ulp = 5": "expected a function, got an int",
    "x = 1": "its cell no longer defines my_ulp(x, significand_bits, emin)",
}


@pytest.mark.parametrize("source", SENTENCES)
def test_an_answer_that_cannot_be_checked_gets_a_sentence(opened: Any, source: str) -> None:
    result = answered(opened, ULP, source)
    assert SENTENCES[source] in result.get("text", ""), result


def test_long_output_is_cut_and_says_so(opened: Any) -> None:
    result = answered(opened, ULP, "while True: print('again')", seconds=2 * slowness())
    assert result["ended"].startswith("Stopped after")
    assert result["said"].startswith("again\nagain\n")
    # 10 kB, and the sentence about it.
    assert len(result["said"]) < 10_200
    assert result["said"].endswith("a run shows its first 10 kB.\n")


# Names of JavaScript by which a worker would reach the network, the page or its storage.
NAMES = (
    *("fetch", "XMLHttpRequest", "WebSocket", "EventSource", "importScripts", "indexedDB"),
    *("caches", "BroadcastChannel", "WebTransport", "Worker", "SharedWorker", "navigator"),
    *("location", "postMessage", "close", "eval", "FontFace", "Notification", "Request"),
    *("webkitRequestFileSystem", "URL", "Blob", "FileReader", "setInterval", "onmessage"),
)
# Attempt to leave the worker -> Python that sets `found` to whether it succeeded.
ESCAPES = {
    **{f"{name} is gone": f"import js\nfound = hasattr(js, {name!r})" for name in NAMES},
    "code from text": "import js\njs.setTimeout.constructor('return 1')()\nfound = True",
    "a timer's text": "import js\njs.setTimeout('1', 0)\nfound = True",
    "run_js": "from pyodide.code import run_js\nrun_js('1')\nfound = True",
    "pyfetch": "import pyodide.http\nawait pyodide.http.pyfetch('x')\nfound = True",
    "open_url": "import pyodide.http\npyodide.http.open_url('x')\nfound = True",
    "a package": "import pyodide_js\nawait pyodide_js.loadPackage('numpy')\nfound = True",
    "a socket": "import socket\nsocket.create_connection(('127.0.0.1', 80))\nfound = True",
    "urllib": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1')\nfound = True",
    "a lazy file": "import pyodide_js\nfs = pyodide_js.FS\n"
    "fs.createLazyFile('/', 'lazy', '/index.html', True, False)\n"
    "found = bool(open('/lazy').read())",
    "a stored folder": "import js, pyodide_js\nfs = pyodide_js.FS\nfs.mkdir('/kept')\n"
    "fs.mount(fs.filesystems.IDBFS, js.Object.new(), '/kept')\n"
    "fs.syncfs(True, lambda error: None)\nfound = True",
    "a command": "import subprocess\nsubprocess.run(['ls'])\nfound = True",
}


def test_the_worker_can_import_js(opened: Any) -> None:
    """Otherwise the attempts to leave it would prove nothing."""
    result = answered(opened, ULP, "import js\nprint('out' if hasattr(js, 'Array') else 'in')")
    assert result["said"].endswith("out\n")


@pytest.mark.parametrize("attempt", ESCAPES)
def test_no_attempt_leaves_the_worker(opened: Any, attempt: str) -> None:
    # An attempt that raises has failed: it does not reach the last line.
    body = f"found = False\n{ESCAPES[attempt]}\nprint('out' if found else 'in')"
    result = answered(opened, ULP, body)
    assert "ended" not in result, result
    assert not result["said"].endswith("out\n"), result


class Plain(SimpleHTTPRequestHandler):
    """A server that sends no policy of its own, and lets any page read what it sends."""

    # Host and path of each request to any of these servers.
    requests: ClassVar[list[str]] = []

    def end_headers(self) -> None:
        self.requests.append(self.headers["Host"] + self.path)
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def plain_server(folder: Path) -> ThreadingHTTPServer:
    """Return a server of a folder that sends no policy."""
    return ThreadingHTTPServer(("127.0.0.1", 0), partial(Plain, directory=str(folder)))


def test_the_pages_policy_binds_the_worker_too(browser: Any, site: Path, tmp_path: Path) -> None:
    # JavaScript: a worker that reports which of three forbidden things it can do.
    attempts = """
    async (other) => {
      const source = `
        const said = [];
        try { eval("1"); said.push("eval"); } catch {}
        try { await import("${other}/x.js"); said.push("import"); } catch {}
        try { await fetch("${other}/x.js"); said.push("fetch"); } catch {}
        postMessage(said);`;
      const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      const worker = new Worker(address, { type: "module" });
      return new Promise((resolve) => { worker.onmessage = ({ data }) => resolve(data); });
    }
    """
    (tmp_path / "x.js").write_text("export default 1;")
    with (
        serving(plain_server(site)) as address,
        serving(plain_server(tmp_path)) as other,
        browser.new_context() as context,
    ):
        page = context.new_page()
        # Without a policy, the worker can do all three.
        page.goto(f"{other}/x.js")
        assert page.evaluate(attempts, other) == ["eval", "import", "fetch"]
        Plain.requests.clear()
        page.goto(f"{address}/01_numbers.html")
        assert page.evaluate(attempts, other) == []
        assert not [path for path in Plain.requests if f"http://{path}".startswith(other)]
        # The page's own Python still works.
        assert answered(page, ULP, solution(ULP))["solved"]


def test_a_workers_html_brings_no_script_and_no_address(opened: Any) -> None:
    html = (
        "<section style='color:red' onclick='x()'><img src=x onerror='x()'><a href='//x'>a</a>"
        "<script>x()</script><div style='background:url(//x)'>kept</div>"
        "<p style='position:fixed'>lost</p><style>*{}</style>"
        "<div style='color:red;\nposition:fixed'>here</div></section>"
    )
    cleaned = opened.evaluate(
        "(html) => { const place = document.createElement('div');"
        "place.append(pictureOf(html)); return place.innerHTML; }",
        html,
    )
    expected = '<section style="color:red"><div>kept</div><div>here</div></section>'
    assert cleaned == expected


def test_in_a_file_the_button_says_that_a_server_is_needed(browser: Any, site: Path) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((site / "01_numbers.html").as_uri())
        exercise(page).get_by_role("button", name="Run the checks").click()
        assert "labkit site FOLDER --serve" in exercise(page).inner_text()


def test_an_exercise_is_solved_by_keyboard_alone(opened: Any) -> None:
    page = opened
    place = exercise(opened)
    area = place.locator("textarea")
    area.focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("def my_ulp(x, significand_bits, emin):")
    page.keyboard.press("Enter")
    page.keyboard.type("if x == 0:")
    page.keyboard.press("Enter")
    page.keyboard.type("return 1.0")
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("return 2.0")
    page.keyboard.press("Tab")
    lines = ["def my_ulp(x, significand_bits, emin):", "    if x == 0:", "        return 1.0"]
    assert area.input_value().split("\n") == [*lines, "    return 2.0  "]
    place.locator(".site-live-picture").evaluate("(picture) => picture.replaceChildren()")
    page.keyboard.press("Control+Enter")
    place.locator(".site-live-picture > section").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Run the checks"


def test_shift_tab_moves_whole_lines_and_joins_none(opened: Any) -> None:
    area = exercise(opened).locator("textarea")
    # Text, start and end of the selection -> text after Shift+Tab.
    cases = (
        ("a\n\nb", 2, 2, "a\n\nb"),
        ("a\n    b", 2, 2, "a\nb"),
        ("a\n    b", 4, 4, "a\nb"),
        ("\n    b", 0, 0, "\n    b"),
        ("    a\n    b", 2, 7, "a\nb"),
    )
    for text, start, end, expected in cases:
        area.fill(text)
        area.evaluate("(area, [start, end]) => area.setSelectionRange(start, end)", [start, end])
        area.press("Shift+Tab")
        assert area.input_value() == expected, (text, start, end)


def test_tab_fills_four_columns_before_an_empty_first_line(opened: Any) -> None:
    area = exercise(opened).locator("textarea")
    area.fill("\nb")
    area.evaluate("(area) => area.setSelectionRange(0, 0)")
    area.press("Tab")
    assert area.input_value() == "    \nb"


def test_a_cell_that_waits_names_await_as_the_reason(opened: Any) -> None:
    result = answered(opened, ULP, f"import asyncio\n{EPSILON}\nawait asyncio.sleep(0)")
    assert "got `await`, for which Python in a page cannot wait" in str(result)


def test_a_character_that_a_run_began_is_not_in_the_next_one(opened: Any) -> None:
    half = "import sys\nsys.stdout.buffer.write(b'\\xe2\\x82')\nsys.stdout.flush()\n"
    answered(opened, ULP, half + EPSILON)
    assert answered(opened, ULP, f"print('whole')\n{EPSILON}")["said"].startswith("whole")


def test_hints_come_one_by_one(opened: Any) -> None:
    place = exercise(opened, "numbers.first_gap")
    for count in (1, 2, 3, 3):
        place.get_by_role("button", name="Hint").click()
        place.locator(".site-live-hints li").nth(count - 1).wait_for()
        assert place.locator(".site-live-hints li").count() == count


def test_the_download_is_graded_like_a_hand_in(browser: Any, served: str, tmp_path: Path) -> None:
    with visit(browser, f"{served}/01_numbers.html") as page:
        exercise(page).locator("textarea").fill(solution(ULP))
        wrong = "def my_first_gap(significand_bits):\n    return 7\n"
        exercise(page, "numbers.first_gap").locator("textarea").fill(wrong)
        page.goto(f"{served}/index.html")
        with page.expect_download() as downloading:
            page.locator("#site-download-button").click()
        (tmp_path / "in").mkdir()
        downloading.value.save_as(tmp_path / "in" / "ada.zip")
    table = tmp_path / "grades.csv"
    words = ["grade", str(tmp_path / "in"), "--csv", str(table), "--lesson", "01_numbers"]
    assert main([*words, "--seed", "3"]) == 0
    points = {line["exercise"]: int(line["points"]) for line in read_table(table, guarded=True)}
    assert points[ULP] == EXERCISES[ULP].points
    assert points["numbers.first_gap"] == 0


def test_pages_with_live_exercises_may_reach_their_server(site: Path) -> None:
    index = unescape((site / "index.html").read_text(encoding="utf-8"))
    assert "connect-src 'self'" in index


def test_pages_without_live_exercises_reach_no_server(tmp_path: Path) -> None:
    new: Any = nbformat.v4
    notebook = new.new_notebook(cells=[new.new_markdown_cell("# A page")])
    write_site(tmp_path / "plain", {"page": notebook})
    page = (tmp_path / "plain" / "page.html").read_text(encoding="utf-8")
    assert "connect-src" not in page
    assert not (tmp_path / "plain" / "live").exists()


def test_the_modules_of_a_page_are_those_that_it_imports() -> None:
    program = (
        "import sys\nfor name in ('torch', 'numpy', 'IPython'): sys.modules[name] = None\n"
        "import labkit.grading.page\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'labkit'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    used = {path.replace("\\", "/").rpartition("/labkit/")[2] for path in done.stdout.split()}
    assert used == {f"{module}.py" for module in PAGE_MODULES}


# --- the whole course ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of all lessons as pages."""
    folder = write_pages(tmp_path_factory.mktemp("course") / "site", ())
    with serving(server_of(folder)) as address:
        yield address


def live_ids(address: str, page: Any) -> dict[str, list[str]]:
    """Return the live exercises of each lesson."""
    page.goto(f"{address}/index.html")
    found: dict[str, list[str]] = page.evaluate("site.lessons")
    return found


def compared(text: str) -> str:
    """Return the part of a grade's text that does not depend on the version of Python.

    Messages of Python's errors differ between versions. A text that contains one is reduced to its
    checks with their points, the known mistake and the last line.
    """
    if not re.search("stopped with|syntax error", text):
        return text
    text = re.sub(r"(stopped with \w+|syntax error)[^\n]*", r"\1", text)
    return "\n".join(re.findall(r"^ {0,2}\S.*$", text, re.MULTILINE))


@pytest.mark.slow
def test_every_live_exercise_is_solved_by_its_reference(browser: Any, course: str) -> None:
    with visit(browser, f"{course}/index.html") as page:
        lessons_of = live_ids(course, page)
        assert sum(map(len, lessons_of.values())) >= 29
        for lesson, ids in lessons_of.items():
            page.goto(f"{course}/{lesson}.html")
            for id in ids:
                task = EXERCISES[id]
                wrong = f"def {task.entry}({', '.join(task.parameters)}):\n    return 'no'\n"
                assert "fail" in run(page, wrong, id).inner_text(), id
                place = run(page, solution(id), id)
                status = place.locator(".site-live-status").inner_text()
                assert status.startswith("Solved."), (id, status)


@pytest.mark.slow
def test_both_places_say_the_same_of_faulty_answers(browser: Any, course: str) -> None:
    count = 0
    differences = {}
    with visit(browser, f"{course}/index.html") as page:
        for lesson, ids in live_ids(course, page).items():
            notebook = learners_notebook(next(one for one in lessons() if one.name == lesson))
            for id in ids:
                own = replace(EXERCISES[id], provides={})
                *_, source = program_of(lesson_cases.cells_of(lesson), own)
                for name, faulty in list(in_code(source))[:50]:
                    there = answered(page, id, faulty, seconds=3 * slowness())
                    # A fault may end in an endless loop, or use a cell that needs torch, which the
                    # page notes. Neither is compared.
                    if "ended" in there or there["notes"]:
                        continue
                    with warnings.catch_warnings(action="ignore"):
                        here = answer_in_page(own, cells_of(notebook, {id: faulty}))
                    count += 1
                    if compared(there["text"]) != compared(here.text):
                        differences[f"{id}: {name}"] = (there["text"], here.text)
    assert differences == {}
    assert count > 500


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, served: str, scheme: str, width: int) -> None:
    """An exercise after a wrong answer, in both themes, on a telephone and on a screen."""
    axe = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("axe-core is missing; `npm ci` installs it")
    size = {"width": width, "height": 800}
    address = f"{served}/01_numbers.html"
    with visit(browser, address, color_scheme=scheme, viewport=size) as page:
        run(page, EPSILON)
        page.evaluate(axe.read_text(encoding="utf-8"))
        violations = page.evaluate("axe.run('.site-live')")["violations"]
        serious = [each for each in violations if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
