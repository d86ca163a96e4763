"""A learner comes back: the kernel was restarted, and what was answered is still there."""

import pytest

from tests.slowness import slowness

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def test_an_answer_outlives_its_kernel(lab):
    (lab.folder / "labkit-answers.jsonl").unlink(missing_ok=True)
    nb = lab.notebook(["from labkit.widgets import predict", "predict('start.warm_up')"], name="morning")
    nb.run_all()
    nb.page.locator(".labkit-predict input").nth(2).check()
    nb.page.get_by_role("button", name="Commit").click()
    nb.page.wait_for_selector(".lk-reply:has-text('Not quite: about a quarter.')")
    nb.page.evaluate("jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    nb.page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    nb.page.wait_for_selector(".labkit-predict", state="detached")
    nb.run_all()
    nb.page.wait_for_selector(".labkit-predict[data-right=false] .lk-reply:has-text('Not quite: about a quarter.')")
    assert nb.page.locator(".labkit-predict input").nth(2).is_checked()
    assert nb.page.get_by_role("button", name="Commit").count() == 0
    assert nb.errors == []
    lab.close(nb)


CURE = "Choose Run\u00a0> Run All Above Selected Cell, then run this cell again (Shift+Enter)."
PREDICT = "predict('start.warm_up')"
LIVE = "from labkit.widgets import LiveTraining\nLiveTraining('digits', 'FP16 static', steps=100_000, device='cpu')"
END_THE_KERNEL = {
    "restarted": "restartKernel()",
    "dead": "session.kernel.requestExecute({code: 'import os; os._exit(1)'})",
    "shut down": "shutdown()",
}
NOTE_THE_TIMES = """() => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const end = () => (window.ended ??= performance.now());
    kernel.statusChanged.connect((_, status) => /restarting/.test(status) && end());
    kernel.disposed.connect(end);
    const look = () => document.querySelector('.labkit-live > .lk-lost') && (window.said ??= performance.now());
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true});
}"""
STILL_ALIVE = """() => [...document.querySelectorAll('.labkit :is(button, input, select, canvas)')]
    .filter((control) => !control.closest('[inert]')).length"""


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.slow] if how == "shut down" else []) for how in END_THE_KERNEL]
)
def test_a_widget_that_lost_its_kernel_says_so_within_a_second_and_is_inert(lab, how):
    nb = lab.notebook([f"from labkit.widgets import NumberLine, predict\n{PREDICT}", "NumberLine()", LIVE])
    nb.run_all()
    nb.page.locator(".labkit-live [data-button=start]").click()
    nb.page.wait_for_selector(".labkit-live[data-phase=running]:not([data-step='0'])")
    nb.page.locator(".labkit-number-line input").first.focus()
    nb.page.evaluate(NOTE_THE_TIMES)
    nb.page.evaluate(f"void jupyterapp.shell.currentWidget.sessionContext.{END_THE_KERNEL[how]}")
    nb.page.wait_for_selector(".labkit-live > .lk-lost")
    assert nb.page.evaluate("window.said - window.ended") < 1000 * slowness()
    notices = nb.page.locator(".labkit > .lk-lost").all_inner_texts()
    assert len(notices) == nb.page.locator(".labkit").count() == 3
    assert all("is gone" in notice and CURE in notice for notice in notices)
    assert nb.page.evaluate(STILL_ALIVE) == 0
    if how != "dead":  # then JupyterLab's own dialog has the focus
        assert "labkit-number-line" in nb.page.evaluate("document.activeElement.className"), "the focus was dropped"
    for theme in ("Light", "Dark"):
        nb.theme(f"JupyterLab {theme}")
        nb.page.locator(".labkit-live").scroll_into_view_if_needed()
        nb.screenshot(f"kernel-{how.replace(' ', '-')}-{theme}".lower())
    assert nb.errors == []
    nb.page.context.close()
