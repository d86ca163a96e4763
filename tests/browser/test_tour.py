"""A guided tour by keyboard: next and back, a ring round what is spoken of, and Esc that closes the tour first."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

CELLS = [
    "from labkit.widgets import MmaBlock, UnderflowHistogram\nboard = MmaBlock()\nboard",
    "import torch\nfrom labkit.instrument import snapshot\n"
    "gradients = {'conv': torch.randn(999) * 2.0**-20, 'head': torch.randn(99) * 2.0**-9}\n"
    "histogram = UnderflowHistogram(snapshot(gradients, step=0, kind='weight gradients'))\nhistogram",
]
RINGED = "(root) => [...root.querySelectorAll('.lk-ringed')].filter((one) => one.getClientRects().length).length"
FOCUS = "document.activeElement.textContent"


@pytest.mark.slow
def test_a_tour_is_walked_by_keyboard_and_esc_closes_it_first(lab):
    nb = lab.notebook(CELLS, name="tour", height=720)
    nb.run_all()
    for name, kind, steps in (("board", "mma", 6), ("histogram", "underflow", 8)):
        root = nb.page.locator(f".labkit-{kind}")
        root.get_by_role("button", name=f"Tour in {steps} steps").press("Enter")
        for step in range(steps):
            nb.page.wait_for_function(
                f"document.querySelector('.labkit-{kind} .lk-tour .lk-quiet').textContent.startsWith('{step + 1} of')"
            )
            assert nb.page.evaluate(FOCUS) == ("Next" if step + 1 < steps else "Done")
            assert root.evaluate(RINGED) == 1, f"{name}, step {step}"
            nb.until(f"{name}.tour_step == {step}")
            nb.theme(f"JupyterLab {'Dark' if step % 2 else 'Light'}")
            nb.screenshot(f"tour-{kind}-{step}")
            if step + 1 < steps:
                nb.page.keyboard.press("Enter")
        nb.page.keyboard.press("Shift+Tab")
        assert nb.page.evaluate(FOCUS) == "Back"
        nb.page.keyboard.press("Enter")
        nb.until(f"{name}.tour_step == {steps - 2}")
        nb.page.keyboard.press("Escape")
        nb.until(f"{name}.tour_step == -1")
        assert nb.page.evaluate(FOCUS) == f"Tour in {steps} steps"
        assert root.evaluate(RINGED) == 0
        nb.page.keyboard.press("Escape")
        assert nb.page.evaluate("document.activeElement.closest('.labkit') === null"), "the next Esc leaves the widget"
    assert nb.errors == []
    lab.close(nb)
