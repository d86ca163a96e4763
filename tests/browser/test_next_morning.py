"""A learner comes back: the kernel was restarted, and what was answered is still there."""

import pytest

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
