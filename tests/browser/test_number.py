"""A prediction that asks for a number: typed, slid, committed by keyboard, and shown beside the true one."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

CELLS = [
    "from labkit.widgets import predict",
    "predict('scaling.window', lambda: 2.0**22)",
    "predict('numbers.tenth', lambda: 0.0244)",
    "predict('gradients.scale', lambda: 4096.0)",
    "from labkit.grading import check\ncheck('start.smallest', lambda *_: 0)",
]
APART = """(marks) => marks.map((mark) => mark.getBoundingClientRect()).every(
  (box, i, all) => i === 0 || all[i - 1].right < box.left
)"""


def test_a_number_is_typed_or_slid_and_stands_beside_the_true_one(lab):
    (lab.folder / "labkit-answers.jsonl").unlink(missing_ok=True)
    nb = lab.notebook(CELLS, name="number", height=800)
    nb.run_all()
    nb.page.wait_for_function("document.querySelectorAll('.labkit-predict').length === 3")
    assert nb.page.locator(".labkit-grade").is_visible(), "what a check says does not wait for predictions"
    typed, slid, long = nb.page.locator(".labkit-predict").all()
    for theme in ("Light", "Dark"):
        nb.theme(f"JupyterLab {theme}")
        nb.screenshot(f"number-asked-{theme}".lower())
    assert long.locator(".lk-mark").evaluate_all(APART), "the unit of its numbers is a word, 'times'"

    field, commit = typed.get_by_role("textbox", name="Your number, from 1 to 1e12"), typed.get_by_role("button")
    assert commit.is_disabled()
    field.press_sequentially("2^60")
    assert typed.get_by_role("alert").inner_text() == "Write a number from 1 to 1e12."
    assert commit.is_disabled()
    field.fill("1,024")
    assert typed.get_by_role("slider").get_attribute("aria-valuetext") == "1,000"  # the line has two digits
    field.press("Enter")
    typed.locator(".lk-reply:text-matches('^Not quite: you said 1,024, it was 4,190,000: ')").wait_for()
    assert typed.locator(".lk-mark[data-kind=guess]").inner_text() == "you: 1,024"

    line = slid.get_by_role("slider", name="Your number on a logarithmic line from 1e-4% to 10%")
    line.focus()
    nb.page.keyboard.press("Home")
    nb.page.keyboard.press("PageUp")
    assert slid.get_by_role("textbox").input_value() == "0.001"
    nb.page.keyboard.press("End")
    slid.get_by_role("button", name="Commit").press("Enter")
    slid.locator(".lk-reply:focus:has-text('you said 10%, it was 0.0244%: 410 times less.')").wait_for()
    assert not line.is_visible()
    for theme in ("Light", "Dark"):
        nb.theme(f"JupyterLab {theme}")
        nb.screenshot(f"number-known-{theme}".lower())
    assert nb.errors == []
    lab.close(nb)
