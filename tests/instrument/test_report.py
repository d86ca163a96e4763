"""Reports of a watch: their text, their page, their file, and what they refuse."""

import json
import re
from functools import partial
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import labkit
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


NOT_REPORTS = {
    "other bytes": (b"\xff\xfe", "expected text in UTF-8, got other bytes"),
    "other text": (b"not json", "expected JSON, got other text"),
    "a number that is too long": (b"9" * 5000, "expected JSON, got other text"),
    "deep JSON": (b"[" * 100_000, "got JSON that is nested too deep"),
    "a list": (b"[]", "expected a report of a watch, got other JSON"),
    "an empty object": (b"{}", "expected a report of a watch, got other JSON"),
    "another object": (b'{"watched": [1]}', "expected a report of a watch, got other JSON"),
}


@pytest.mark.parametrize("name", NOT_REPORTS)
def test_a_file_that_is_not_a_report_is_refused(name, tmp_path):
    content, message = NOT_REPORTS[name]
    (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"report\.json: .*{message}.* Pass a report\.json that"):
        Report.load(tmp_path)


def edited(report, folder, edit):
    """Save a report, edit the values in its file, and return the file."""
    file = report.save(folder) / "report.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    edit(values)
    file.write_text(json.dumps(values), encoding="utf-8")
    return file


OTHER_VERSIONS = {
    "a schema": (
        lambda values: values.update(schema="labkit.saved_report/9"),
        "expected the schema 'labkit.saved_report/1', got 'labkit.saved_report/9'",
    ),
    "a field": (
        lambda values: values.update(mood="good"),
        "got the field 'mood'. ",
    ),
    "a field of a record": (
        lambda values: values["watched"][0].update(mood="good"),
        "got the field 'mood' of watched[0]. ",
    ),
    "no field of a record": (
        lambda values: values["watched"][1].pop("moves"),
        "expected the field 'moves' of watched[1], got none. ",
    ),
}


@pytest.mark.parametrize("name", OTHER_VERSIONS)
def test_a_report_of_another_version_is_refused_with_that_version(
    name, report_of_3_steps, tmp_path
):
    edit, message = OTHER_VERSIONS[name]
    file = edited(report_of_3_steps, tmp_path, edit)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Report.load(file)
    assert f"report.json, saved by labkit {labkit.__version__}: " in str(caught.value)
    assert str(caught.value).endswith("Load it with the labkit that saved it.")


CHANGES = {
    "a text for a number": (
        lambda values: values.update(steps="three"),
        "steps: expected a whole number, got 'three'. ",
    ),
    "true for a number": (
        lambda values: values.update(steps=True),
        "steps: expected a whole number, got True. ",
    ),
    "a number for a list": (
        lambda values: values.update(watched=1),
        "watched: expected a list, got 1. ",
    ),
    "a number for a record": (
        lambda values: values.update(watched=[1]),
        "watched[0]: expected an object, got 1. ",
    ),
    "three numbers for a pair": (
        lambda values: values["watched"][0]["moves"].update(a=[1, 2, 3]),
        "watched[0].moves.a: expected a list of 2, got [1, 2, 3]. ",
    ),
    "counts below zero": (
        lambda values: values["watched"][0]["histograms"]["weights"]["first.bias"].update(
            counts=[-1]
        ),
        "watched[0].histograms.weights.first.bias.counts: expected counts of elements, got [-1]. ",
    ),
    "an unknown status": (
        lambda values: values.update(findings=[{"name": "a", "status": "odd", "what": "b"}]),
        "findings[0].status: expected one of 'ok', 'warn', 'bad', got 'odd'. ",
    ),
    "a fault without a remedy": (
        lambda values: values.update(findings=[{"name": "a", "status": "bad", "what": "b"}]),
        "findings[0].remedy: expected a remedy, got ''. ",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_report_that_was_changed_is_refused_with_the_place(name, report_of_3_steps, tmp_path):
    edit, message = CHANGES[name]
    file = edited(report_of_3_steps, tmp_path, edit)
    with pytest.raises(ValueError, match=re.escape(message)):
        Report.load(file)


@pytest.mark.parametrize("error", [TypeError, KeyError, AttributeError, ValueError])
def test_a_mistake_of_the_lab_is_not_one_of_the_file(
    error, report_of_3_steps, tmp_path, monkeypatch
):
    def fail(*_):
        raise error("a mistake of the lab")

    folder = report_of_3_steps.save(tmp_path)
    monkeypatch.setattr("labkit.instrument.report.fields_from_json", fail)
    with pytest.raises(error, match="a mistake of the lab"):
        Report.load(folder)


def test_a_loaded_report_has_the_versions_and_the_system_of_the_watch(
    report_of_3_steps, tmp_path, monkeypatch
):
    folder = report_of_3_steps.save(tmp_path)
    first_line = str(report_of_3_steps).splitlines()[0]
    assert f"(labkit {labkit.__version__}, torch {torch.__version__}, " in first_line
    monkeypatch.setattr(labkit, "__version__", "42")
    monkeypatch.setattr(torch, "__version__", "99.0")
    monkeypatch.setattr("platform.system", lambda: "another system")
    assert str(Report.load(folder)).splitlines()[0] == first_line


def test_a_report_that_was_saved_without_versions_says_so(report_of_3_steps, tmp_path):
    def as_0_3_0(values):
        del values["schema"]
        del values["software"]

    report = Report.load(edited(report_of_3_steps, tmp_path, as_0_3_0))
    assert report.software is None
    assert "(versions and system unknown)" in str(report).splitlines()[0]
    assert report.watched == report_of_3_steps.watched


def test_a_model_whose_name_is_not_in_unicode_has_its_report_saved(tmp_path):
    report = Report(model="N\udcff", steps=1)
    assert Report.load(report.save(tmp_path)) == report
    assert r"N\udcff" in (tmp_path / "report.txt").read_text(encoding="utf-8")


def test_the_steps_beyond_the_first_skips_are_counted():
    skips = tuple(Skip(step, 1024.0, (), "inf") for step in range(9))
    assert "- 4 more steps were skipped" in str(Report(model="Net", steps=9, skips=skips))


@pytest.mark.parametrize(("zeros", "smallest"), [(0, 2.0), (1, 0.0)])
def test_a_histogram_of_tensorboard_begins_at_zero_only_if_it_has_zeros(zeros, smallest):
    counted = trimmed(exponent_histogram(torch.tensor([3.0, 5.0] + [0.0] * zeros)))
    step = WatchedStep(0, 1.0, {"weights": {"a": counted}}, {}, {}, {})
    writer = MagicMock()
    Report(model="Net", steps=1, watched=(step,)).to_tensorboard(writer)
    assert writer.add_histogram_raw.call_args.kwargs["min"] == smallest


@pytest.mark.parametrize("given", [False, True])
def test_a_report_says_where_the_comparison_with_fp32_begins(given, tmp_path):
    model = nn.Linear(8, 4)
    loss = partial(cross_entropy, target=Y) if given else None
    with watch(model, every=1, against_fp32_every=1, loss=loss) as w:
        cross_entropy(model(X), Y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    page = (w.report().save(tmp_path) / "report.html").read_text(encoding="utf-8")
    assert ("begins at the model&#39;s outputs" in page) != given
