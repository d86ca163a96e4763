"""Until a learner commits, what the next cells print is kept back; but not what stands under the next heading."""

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

CELLS = [
    nbformat.v4.new_code_cell("from labkit.widgets import predict\npredict('start.warm_up')"),
    nbformat.v4.new_code_cell("print('the answer')"),
    nbformat.v4.new_markdown_cell("## The next part\n\nIt stands alone."),
    nbformat.v4.new_code_cell("print('another part')"),
]


def test_what_is_printed_waits_for_the_prediction_and_the_next_part_does_not(lab):
    document = nbformat.v4.new_notebook(cells=CELLS)
    document.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (lab.folder / "labkit-answers.jsonl").unlink(missing_ok=True)
    notebook = lab.open(document, "predict")
    notebook.run_all()
    notebook.page.wait_for_selector(".labkit-predict[data-right='']")
    answer, other = (
        notebook.page.locator(f".jp-OutputArea-output pre:has-text('{text}')")
        for text in ("the answer", "another part")
    )
    assert not answer.is_visible()
    assert other.is_visible()
    notebook.page.locator(".labkit-predict input[type=radio]").first.check()
    notebook.page.locator(".labkit-predict button").click()
    answer.wait_for()
    assert notebook.errors == []
    lab.close(notebook)
