"""Reports of a watch: their text, their page, their file, and what they refuse."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.instrument import Report, exponent_histogram, watch
from labkit.instrument.records import AgainstFP32, Skip, WatchedStep, trimmed
from labkit.instrument.report_page import _round_numbers
from tests.instrument.test_watch import Net, X, Y, scaled

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


@pytest.fixture
def report_of_3_steps():
    """The report of a watch that sampled the first and the last of 3 steps."""
    model = Net()
    with watch(model, every=2) as w:
        scaled(model, 3)
    return w.report()


def test_a_report_that_was_saved_loads_as_it_was(report_of_3_steps, tmp_path):
    folder = report_of_3_steps.save(tmp_path / "watched")
    assert {path.name for path in folder.iterdir()} == {"report.html", "report.json", "report.txt"}
    assert Report.load(folder) == report_of_3_steps


def test_the_page_of_a_report_has_its_text_and_a_figure(report_of_3_steps, tmp_path):
    folder = report_of_3_steps.save(tmp_path / "watched")
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in (report_of_3_steps.summary, "in use", "What FP16 loses", "Histograms"):
        assert text in page
    for text in ("<svg", "light-dark(", "first.weight"):
        assert text in page


def test_the_page_of_a_report_has_no_address_and_no_script(report_of_3_steps, tmp_path):
    folder = report_of_3_steps.save(tmp_path / "watched")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "http" not in page
    assert "<script" not in page


def test_the_text_of_a_report_counts_its_steps(report_of_3_steps, tmp_path):
    folder = report_of_3_steps.save(tmp_path / "watched")
    assert "3 steps, 2 sampled, 0 skipped" in (folder / "report.txt").read_text()


def test_histograms_of_a_step_that_was_not_watched_are_refused(report_of_3_steps):
    with pytest.raises(ValueError, match=r"step 1 was not watched; watched: 0, 2"):
        report_of_3_steps.histograms("weights", step=1)


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), 0.0, -2.0])
@pytest.mark.parametrize("sampled", [True, False])
def test_a_report_of_an_invalid_scale_is_shown(scale, sampled):
    counted = trimmed(exponent_histogram(torch.tensor([1.0, 2.0**-30])))
    kinds = {"weight gradients": {"a": counted}, "activation gradients": {"b": counted}}
    step = WatchedStep(0, scale, kinds, {"a": (2, 0)}, {"weights": 8}, {})
    exact = AgainstFP32(0, {"weight gradients": {"a": (1, 2)}}, kinds, (1, 1), "the loss")
    report = Report(
        model="Net",
        steps=2,
        watched=(step,) if sampled else (),
        skips=(Skip(1, scale, ("a",), "inf"),),
        against_fp32=(exact,),
    )
    assert "Nothing wrong was found" in str(report)
    assert "Nothing wrong was found" in report._repr_html_()


def test_a_report_without_measured_memory_has_no_line_for_it() -> None:
    step = WatchedStep(0, 1.0, {}, {}, {"weights": 0, "activations": 0}, {})
    assert "memory" not in str(Report(model="Net", steps=1, watched=(step,)))


@pytest.mark.parametrize("steps", [3, 60, 720, 8000, 10**6])
def test_an_axis_of_any_length_has_several_labels(steps: int) -> None:
    assert 3 <= len(_round_numbers(0, steps)) <= 8


def test_a_model_may_name_its_parameters_like_the_parts_of_a_histogram(tmp_path) -> None:
    names = ("lo", "counts", "zeros", "bad")
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(2)) for name in names})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1) as w:
        sum(model.values()).sum().backward()
        optimizer.step()
    report = w.report()
    assert set(report.histograms("weights")) == set(names)
    assert Report.load(report.save(tmp_path)) == report


def test_a_file_that_is_not_a_report_is_refused(tmp_path):
    for content in (
        b"not json",
        b"[]",
        b"{}",
        b'{"watched": 1}',
        b'{"watched": [1]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ):
        (tmp_path / "report.json").write_bytes(content)
        with pytest.raises(ValueError, match="expected a report of a watch"):
            Report.load(tmp_path)


@pytest.mark.parametrize("given", [False, True])
def test_a_report_says_where_the_comparison_with_fp32_begins(given, tmp_path):
    model = nn.Linear(8, 4)
    loss = partial(cross_entropy, target=Y) if given else None
    with watch(model, every=1, against_fp32_every=1, loss=loss) as w:
        cross_entropy(model(X), Y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    page = (w.report().save(tmp_path) / "report.html").read_text(encoding="utf-8")
    assert ("begins at the model&#39;s outputs" in page) != given
