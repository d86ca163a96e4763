"""`labkit watch train.py`: the script runs as under Python, and its models are reported."""

import subprocess
import sys

import pytest
import torch

from labkit.cli import main
from labkit.findings import Status
from labkit.instrument import Report
from labkit.instrument.script import run_script, watched
from tests.instrument.leftovers import hooks

SCRIPT = """
import sys

import torch
from torch import nn

import beside  # a module in the script's folder


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


if __name__ == "__main__":
    torch.manual_seed(0)
    models = [Net(), nn.Sequential(nn.Linear(4, 1))]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(int(sys.argv[1])):
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
    print(sum(p.sum().item() for p in models[0].parameters()), __name__, beside.WORD)
    if sys.argv[2:] == ["raise"]:
        raise KeyError("planted")
    sys.exit(7)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "beside.py").write_text('WORD = "beside"\n')
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def watch_seven_steps(script, folder):
    """Watch a script of seven steps, every third of them, and return its exit status."""
    return main(["watch", "--every", "3", "--folder", str(folder), str(script), "7"])


def test_a_watched_script_leaves_the_process_as_it_was(script, tmp_path):
    before = hooks(), list(sys.path), list(sys.argv), torch.nn.Sequential.__call__
    watch_seven_steps(script, tmp_path / "seen")
    assert (hooks(), list(sys.path), list(sys.argv), torch.nn.Sequential.__call__) == before


def test_a_watched_script_has_its_exit_status(script, tmp_path):
    assert watch_seven_steps(script, tmp_path / "seen") == 7


def test_a_report_is_printed_after_the_script(script, tmp_path, capsys):
    watch_seven_steps(script, tmp_path / "seen")
    printed = capsys.readouterr()
    assert "__main__ beside\nNet: 7 steps" in printed.out
    assert printed.err == ""


def test_each_model_of_a_script_has_a_report(script, tmp_path):
    watch_seven_steps(script, tmp_path / "seen")
    models = [Report.load(tmp_path / name).model for name in ("seen", "seen-2")]
    assert models == ["Net", "Sequential"]


def test_a_report_of_a_script_has_its_weights_by_name(script, tmp_path):
    watch_seven_steps(script, tmp_path / "seen")
    names = Report.load(tmp_path / "seen").histograms("weights").keys()
    assert names == {"layer.weight", "layer.bias"}


def test_the_second_step_of_a_script_is_the_first_that_is_whole(script, tmp_path):
    """The model is found in step 0."""
    watch_seven_steps(script, tmp_path / "seen")
    watched_steps = Report.load(tmp_path / "seen").watched
    assert [step.step for step in watched_steps] == [0, 1, 3, 6]
    assert set(watched_steps[0].histograms) == {"weights", "weight gradients", "updates"}
    assert set(watched_steps[1].histograms) >= {"activations", "activation gradients"}


@pytest.mark.slow
def test_a_watched_script_prints_the_same_digits(script, tmp_path):
    alone = subprocess.run(
        [sys.executable, script, "5"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    command = [sys.executable, "-m", "labkit", "watch", "--every", "1", str(script), "5"]
    watched = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert alone.returncode == 7, alone.stderr
    assert watched.stdout.startswith(alone.stdout)
    assert watched.returncode == 7, watched.stderr
    assert (tmp_path / "watch-report" / "report.html").is_file()


def test_paths_of_a_watched_script_may_be_text(script, tmp_path):
    recording = tmp_path / "run.labkit"
    status, reports = watched(str(script), ["2"], every=1, record=str(recording))
    assert status == 7
    assert [report.steps for report in reports] == [2, 2]
    assert recording.is_file()


def test_a_script_that_fails_has_a_report(script, tmp_path, capsys):
    assert main(["watch", "--folder", str(tmp_path / "seen"), str(script), "3", "raise"]) == 1
    error = capsys.readouterr().err
    assert "KeyError: 'planted'" in error
    assert Report.load(tmp_path / "seen").steps == 3


@pytest.mark.parametrize(("code", "status", "printed"), [("['cut']", 1, "['cut']\n"), ("3", 3, "")])
def test_exit_prints_what_python_would_print(tmp_path, capsys, code, status, printed):
    ending = tmp_path / "ending.py"
    ending.write_text(f"import sys\nsys.exit({code})\n")
    assert run_script(ending, []) == status
    assert capsys.readouterr().err == printed


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    raise ValueError('a')\ntry:\n    f()\nfinally:\n    1 / 0",
        "raise KeyboardInterrupt",
        "x = = 1",
        "import sys\nsys.excepthook = lambda *error: sys.stderr.write('hook')\nraise OSError",
    ],
    ids=["chain", "interrupt", "syntax", "hook"],
)
def test_an_exception_is_printed_as_by_python(tmp_path, capsys, monkeypatch, code):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    failing = tmp_path / "failing.py"
    failing.write_text(code)
    python = subprocess.run(
        [sys.executable, failing], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run_script(failing, []) != 0
    assert capsys.readouterr().err == python.stderr


def test_a_missing_script_ends_the_command_with_2(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "none.py")]) == 2
    assert "there is no script at" in capsys.readouterr().err


def test_an_invalid_interval_ends_the_command_with_2(script, capsys):
    assert main(["watch", "--every", "0", str(script), "1"]) == 2
    assert "every" in capsys.readouterr().err


def test_a_script_without_a_model_says_so(tmp_path, capsys):
    empty = tmp_path / "empty.py"
    empty.write_text("pass\n")
    assert main(["watch", str(empty)]) == 0
    assert "there was no model to watch" in capsys.readouterr().err


MASTERS = """
import torch
model = torch.nn.Linear(8, 3).half()
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.1)
for number in range(3):
    model(torch.ones(16, 8).half()).float().square().mean().backward()
    for master, p in zip(masters, model.parameters()):
        master.grad, p.grad = p.grad.float(), None
    optimizer.step()
"""


def test_manual_master_weights_are_named_as_not_observed(tmp_path, capsys):
    (tmp_path / "train.py").write_text(MASTERS)
    assert main(["watch", "--folder", str(tmp_path / "seen"), str(tmp_path / "train.py")]) == 0
    printed = capsys.readouterr().out
    assert "- not observed: an optimizer whose parameters are in no module" in printed
    assert "labkit diagnose" in printed
    assert "no torch optimizer stepped" not in printed


SKIPPED = """
import torch
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
for number in range(12):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.ones(16, 8)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update({new_scale})
"""


@pytest.mark.parametrize(
    ("new_scale", "second_scale", "names"),
    [
        ("", 2.0**39, {"scale too high"}),
        ("2.0**40", 2.0**40, {"scale too high", "scale does not fall"}),
    ],
    ids=["lowered after each skip", "reset after each skip"],
)
def test_a_script_whose_optimizer_is_never_called_has_a_report(
    tmp_path, new_scale, second_scale, names
):
    script = tmp_path / "train.py"
    script.write_text(SKIPPED.format(new_scale=new_scale))
    assert main(["watch", "--folder", str(tmp_path / "seen"), str(script)]) == 0
    report = Report.load(tmp_path / "seen")
    assert (report.steps, len(report.skips), report.unseen) == (12, 12, ())
    assert [skip.scale for skip in report.skips[:2]] == [2.0**40, second_scale]
    findings = [finding for finding in report.findings if finding.status is not Status.OK]
    assert {finding.name for finding in findings} == names
