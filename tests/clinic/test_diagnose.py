"""`diagnose` on training loops: it finds the faults that it claims, and none in healthy ones."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit import cli
from labkit.clinic import Report as Diagnosis
from labkit.clinic import Status, claims, diagnose
from labkit.faults import FAULTS
from tests.clinic.trainings import BROKEN, HEALTHY, Case, blobs, classify, fp16, usual

# The batch that a fault waits for; what comes before is not looked at.
WAITS = {
    "clip_with_inf": 49,
    "nan_only_in_eval": 29,
    "row_all_masked": 36,
    "validation_sum": 390,
    "softmax_by_hand": 45,
}
FAST = {
    "mask_constant",
    "stale_cast",
    "decay_is_lost",
    "optimizer_made_before",  # faults
    "accumulation",
    "averaged_model",
    "gradient_penalty",
    "two_backward_passes",  # healthy
    "lora_in_half",
    "attention_mask_constant",
    "one_region_for_all",
    "schedule_runs_ahead",  # broken
}


def of_each(names: Iterable[str]) -> pytest.MarkDecorator:
    """A test of those that are fast, and a slow one of the others."""
    fast, others = (
        [name for name in names if (name in FAST) is wanted] for wanted in (True, False)
    )
    slow = pytest.param(others, marks=[pytest.mark.slow, pytest.mark.timeout(900)])
    return pytest.mark.parametrize("names", [fast, slow], ids=["fast", "others"])


def diagnosed(name: str, fixed: bool, steps: int = 6) -> Diagnosis:
    """The report on one form of a fault, from the batch on that its fault waits for."""
    with torch.random.fork_rng(devices=[]):
        training = FAULTS[name].function(fixed)
        batches = list(training.batches)
        start = WAITS.get(name, 0)
        for batch in batches[:start]:
            training.step(batch)
        rest = batches[start : start + (60 if start > 100 else 15 if start else len(batches))]
        steps = len(rest) if start else steps
        report = diagnose(
            training.step, training.model, training.optimizer, training.scaler, rest, steps
        )
        if torch.is_autocast_enabled("cpu"):
            training.step(batches[-1])  # which ends the region that one of them opens
        assert not torch.is_autocast_enabled("cpu")
        return report


def found(name: str, report: Diagnosis) -> set[str]:
    return {f.name for f in report.findings if f.status is not Status.OK and name in f.faults}


@pytest.mark.filterwarnings("ignore:Detected call of")
@of_each(claims())
def test_claimed_faults_are_found_in_broken_trainings_only(
    names: list[str],
) -> None:
    wrong = {}
    for name in names:
        steps = 16 if name == "positions_in_half" else 6
        broken, fixed = (found(name, diagnosed(name, form, steps)) for form in (False, True))
        if not broken & claims()[name] or fixed:
            wrong[name] = broken, fixed
    assert not wrong


def test_worked_example_a_healthy_training_passes_unchanged() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        looked_at = HEALTHY["mlp_one_cycle"]()
        report = diagnose(
            looked_at.step,
            looked_at.model,
            looked_at.optimizer,
            looked_at.scaler,
            looked_at.batches,
            6,
        )
        torch.manual_seed(0)
        alone = HEALTHY["mlp_one_cycle"]()
        for batch in alone.batches[:6]:
            alone.step(batch)
    assert report.healthy, report
    assert all(
        map(torch.equal, looked_at.model.state_dict().values(), alone.model.state_dict().values())
    ), "every bit"


def examined(make: Callable[[], Case], steps: int) -> Diagnosis:
    """The report on the first steps of a training, which then goes on to its end."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        case = make()
        batches = iter(case.batches)
        report = diagnose(case.step, case.model, case.optimizer, case.scaler, batches, steps)
        for batch in batches if report.healthy else ():
            case.step(batch)
    assert not report.healthy or all(p.isfinite().all() for p in case.model.parameters()), make
    return report


@of_each(HEALTHY)
def test_a_healthy_training_has_no_finding(names: list[str]) -> None:
    reports = {name: examined(HEALTHY[name], steps=20) for name in names}
    assert not {name: report for name, report in reports.items() if report.findings[:-1]}


@pytest.mark.filterwarnings("ignore:Detected call of")
@of_each(BROKEN)
def test_each_broken_script_is_found_and_its_fault_named(names: list[str]) -> None:
    wrong = {}
    for name, (training, patient) in ((name, BROKEN[name]) for name in names):
        report = examined(training, steps=60)
        steps = [found.step or 0 for found in report.findings if found.status is Status.BAD]
        assert steps == sorted(steps), "of two faults that are as bad the earlier step comes first"
        if not any(f.status is not Status.OK and patient in f.faults for f in report.findings):
            wrong[name] = report
    assert not wrong


def test_error_is_reported_with_its_line_and_fault() -> None:
    before = (
        torch.autograd.backward,
        torch.amp.GradScaler.step,
        torch.amp.autocast_mode.autocast.__enter__,
    )
    report = diagnosed("mask_constant", fixed=False)
    assert before == (
        torch.autograd.backward,
        torch.amp.GradScaler.step,
        torch.amp.autocast_mode.autocast.__enter__,
    )
    (first, *_) = report.findings
    assert (first.name, first.status, first.faults) == ("exception", Status.BAD, ("mask_constant",))
    assert first.where.startswith("attention.py:")
    assert "labkit explain mask_constant" in str(report)


def test_what_is_no_training_is_refused_in_words() -> None:
    well = HEALTHY["accumulation"]()
    for error, says, wrong in (
        (ValueError, "batches is empty", {"batches": []}),
        (TypeError, "step: expected a function", {"step": 3}),
        (ValueError, "has no parameter", {"model": torch.nn.ReLU()}),
        (ValueError, "steps: expected a positive", {"steps": 0}),
    ):
        with pytest.raises(error, match=says):
            diagnose(**{**vars(well), **wrong})


SCRIPT = """
import sys, torch, torch.nn.functional as F
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
for number in range(1000):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    scaler.scale(loss).backward()
    if "early" in sys.argv:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print("done", number)
"""


def test_the_command_says_by_its_exit_status_how_a_script_is(tmp_path, capsys) -> None:
    script = tmp_path / "train.py"
    none = tmp_path / "none.py"
    script.write_text(SCRIPT, encoding="utf-8")
    none.write_text("print('no training')", encoding="utf-8")
    assert cli.main(["diagnose", str(script), "--steps", "3"]) == 0
    assert "done 2" in (said := capsys.readouterr().out)
    assert "done 4" not in said, "it stops after the steps that were asked for"
    assert "called as a whole" not in said, (
        "the model is found in the first step, after its forward pass"
    )
    assert cli.main(["diagnose", str(script), "--steps", "3", "early"]) == 1
    printed = capsys.readouterr().out
    assert "labkit explain clip_before_unscale" in printed
    (clipped,) = (line for line in printed.splitlines() if "clipped while scaled" in line)
    assert "first in step 0" in clipped, "the loss was scaled before the model was found"
    assert cli.main(["diagnose", str(none)]) == 3
    assert "before a training step" in capsys.readouterr().err
    assert cli.main(["diagnose", str(tmp_path / "missing.py")]) == 2
    assert "there is no script" in capsys.readouterr().err


def test_syntax_error_is_reported_with_its_line(tmp_path, capsys) -> None:
    script = tmp_path / "bad.py"
    script.write_text("loss = (", encoding="utf-8")
    assert cli.main(["diagnose", str(script)]) == 3
    message = capsys.readouterr().err.rstrip()
    assert "SyntaxError" in message
    assert message.endswith("(bad.py, line 1)")


ENDINGS = {  # how a script ends before its first step -> a part of the remedy
    'raise RuntimeError("Current loss scale already at minimum - cannot decrease scale")': (
        "come from the forward pass"
    ),
    "import sys; sys.exit('Minimum loss scale reached (0.0001). Your loss is exploding.')": (
        "come from the forward pass"
    ),
    "import torch; torch.zeros(2).index_add_(0, torch.tensor([0]), torch.ones(1).half())": (
        "y.to(x.dtype)"
    ),
    "raise RuntimeError('backend failed') from ValueError('MKL FFT doesn\\'t support tensors of "
    "type: Half')": "Cast before the transform",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_known_message_before_the_first_step_gets_its_remedy(ending, tmp_path, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text(ending, encoding="utf-8")
    assert cli.main(["diagnose", str(script)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert ENDINGS[ending] in printed
    assert "labkit diagnose train.py" not in printed, "the advice to run what is running"


def test_the_published_table_is_that_of_the_rows() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    known = set(FAULTS)
    claimed = set(claims())
    assert f"| {len(known)} | {len(claimed)} | {len(claimed)} | 0 | - | 0 |" in text
    assert f"| {len(BROKEN)} | {len(BROKEN)} | {len(BROKEN)} | - | {len(HEALTHY)} | 0" in text
    assert (
        "Not claimed: " + ", ".join(f"`{name}`" for name in sorted(known - claimed)) + "." in text
    )


def test_scaler_in_search_of_its_scale_is_healthy() -> None:
    """Clipping makes NaN of the inf in gradients whose step is skipped."""
    for exponent, clip, skipped in ((60, 0.0, 12), (60, 1.0, 12), (18, 0.0, 2), (18, 1.0, 2)):
        torch.manual_seed(0)  # the number of skips depends on the weights
        net = torch.nn.Linear(20, 5)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        make = partial(
            usual, net, opt, classify(net), blobs(12), clip=clip, init_scale=2.0**exponent
        )
        report = examined(make, steps=12)
        assert not report.findings[:-1], report
        assert f"{skipped} skipped" in str(report), report


def test_scale_reset_after_each_skip_is_a_fault() -> None:
    def make() -> Case:
        net = torch.nn.Linear(20, 5)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        again = lambda: case.scaler.update(2.0**40)  # noqa: E731
        case = usual(net, opt, classify(net), blobs(12), then=again, init_scale=2.0**40)
        return case

    (first, *_) = examined(make, steps=12).findings
    assert (first.name, first.status) == ("scale does not fall", Status.BAD)
    assert first.what.startswith("the last 12 steps were skipped, all at a scale of 2^40")


def by_hand(
    scale: float,
    divide: Callable[[nn.Module, float], object],
    autocast: bool = True,
    lr: float = 0.01,
) -> Case:
    """A training with a loss scale of its own; `divide` unscales, or forgets to."""
    net = torch.nn.Linear(20, 5)
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    loss_of = classify(net)

    def train_step(batch: object) -> None:
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            loss = loss_of(batch)
        (loss * scale).backward()
        divide(net, scale)
        opt.step()

    return Case(train_step, blobs(8), net, opt, None)


def divided_in_place(net: nn.Module, scale: float) -> None:
    for p in net.parameters():
        p.grad /= scale


def clipped(net: nn.Module, _: float) -> None:
    """Shortens what is longer: gradients that it leaves as they are stay scaled."""
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9)


def test_missing_division_by_hand_is_a_fault() -> None:
    forgotten = [
        (1024.0, lambda *_: None),
        (256.0, clipped),
        (2.0**15, lambda net, _: net.bias.grad.div_(2.0**15)),
    ]

    def replaced(net: nn.Module, scale: float) -> None:
        for parameter in net.parameters():
            parameter.grad = parameter.grad / scale

    right = [(1024.0, divided_in_place), (2.0**15, replaced)]
    for scale, divide in forgotten:
        report = examined(partial(by_hand, scale, divide, lr=0.01 / scale), steps=4)
        (found,) = (f for f in report.findings if f.name == "a step with scaled gradients")
        # 256 may be the size of a batch
        assert found.status is (Status.BAD if scale >= 1024 else Status.WARN)
        assert found.what.startswith(
            f"the optimizer got the gradients of the loss times {scale:g}, not divided by it"
        )
        assert found.where.startswith("test_diagnose.py:")
    for scale, divide in right:
        assert not examined(partial(by_hand, scale, divide), steps=4).findings[:-1]
    assert not examined(
        partial(by_hand, 1024.0, clipped, autocast=False, lr=1e-5), steps=4
    ).findings[:-1], "in FP32"
    assert not examined(partial(by_hand, 3.0, clipped), steps=4).findings[:-1], (
        "a weight of the loss"
    )

    def divided_by_hooks(of_optimizer: bool) -> Case:
        case = by_hand(1024.0, lambda *_: None)
        if of_optimizer:
            case.optimizer.register_step_pre_hook(lambda *_: divided_in_place(case.model, 1024.0))
        for p in () if of_optimizer else case.model.parameters():
            p.register_hook(lambda gradient: gradient / 1024.0)
        return case

    for of_optimizer in (True, False):
        assert not examined(partial(divided_by_hooks, of_optimizer), steps=4).findings[:-1]


def test_overflow_in_a_closure_is_one_of_the_forward_pass() -> None:
    net = torch.nn.Linear(20, 5)
    opt = torch.optim.LBFGS(net.parameters(), max_iter=2)
    loss_of = classify(net, factor=1e6)

    def train_step(batch: object) -> None:
        def closure() -> torch.Tensor:
            opt.zero_grad()
            with fp16():
                loss = loss_of(batch)
            loss.backward()
            return loss

        opt.step(closure)

    (first, *_) = examined(lambda: Case(train_step, blobs(3), net, opt), steps=3).findings
    assert (first.name, "forward pass" in first.what) == ("overflow", True)


CATCHES_ALL = """
import torch
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(number):
    while number:
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        print("stepped")
        number -= 1
"""
ENDLESSLY = """
while True:
    try:
        train(1)
    except:
        print("caught")
"""
ONCE = """
try:
    train(9)
except:
    print("caught")
train(9)
"""


def test_script_that_catches_everything_ends_at_the_limit(tmp_path, capsys) -> None:
    tracing = sys.gettrace()
    for catches in (ENDLESSLY, ONCE):
        (tmp_path / "train.py").write_text(CATCHES_ALL + catches, encoding="utf-8")
        assert cli.main(["diagnose", str(tmp_path / "train.py"), "--steps", "2"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines.count("stepped") == 2
        assert lines.count("caught") <= 1
        assert any(
            line.endswith("2 steps were run; 2 optimizer steps were taken and 0 skipped")
            for line in lines
        )
        assert sys.gettrace() is tracing


SKIPPED_BY_HAND = """
import torch
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(16, 8)).square().mean()
    (2.0**40 * loss).backward()
    if all(p.grad.isfinite().all() for p in model.parameters()):
        optimizer.step()
"""


def test_a_script_that_skips_every_step_by_itself_is_at_fault(tmp_path, capsys) -> None:
    (tmp_path / "train.py").write_text(SKIPPED_BY_HAND, encoding="utf-8")
    assert cli.main(["diagnose", str(tmp_path / "train.py")]) == 1
    said = capsys.readouterr().out
    assert "overflow: train.py:9" in said, "the loss is FP16, and the scale is above its range"
    assert "1 fault to repair" in said
    assert "it led to: inf or NaN in the backward pass, no step was taken" in said
