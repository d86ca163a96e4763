"""`diagnose` on training loops: it finds the faults that it claims, and none in healthy ones."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit import cli
from labkit.clinic import Report, Status, claims, diagnose
from labkit.faults import FAULTS
from tests.clinic.trainings import BROKEN, HEALTHY, Case, blobs, classify, fp16, usual

# The batch from which a training is diagnosed, because its fault acts late.
FIRST_DIAGNOSED_BATCH = {
    "clip_with_inf": 49,
    "nan_only_in_eval": 29,
    "row_all_masked": 36,
    "validation_sum": 390,
    "softmax_by_hand": 45,
}
# Trainings whose diagnosis is fast: faults, healthy ones, and broken ones.
FAST = {
    "mask_constant",
    "stale_cast",
    "decay_is_lost",
    "optimizer_made_before",
    "accumulation",
    "averaged_model",
    "gradient_penalty",
    "two_backward_passes",
    "lora_in_half",
    "attention_mask_constant",
    "one_region_for_all",
    "schedule_runs_ahead",
}


def of_each(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test by the fast names together, and by all others as a slow test."""
    names = list(names)
    fast = [name for name in names if name in FAST]
    others = [name for name in names if name not in FAST]
    slow = pytest.param(others, marks=[pytest.mark.slow, pytest.mark.timeout(900)])
    return pytest.mark.parametrize("names", [fast, slow], ids=["fast", "others"])


def diagnosed(name: str, fixed: bool, steps: int = 6) -> Report:
    """Return the diagnosis of the broken or the fixed form of a fault."""
    with torch.random.fork_rng(devices=[]):
        training = FAULTS[name].function(fixed)
        batches = list(training.batches)
        start = FIRST_DIAGNOSED_BATCH.get(name, 0)
        for batch in batches[:start]:
            training.step(batch)
        # A fault that acts late is diagnosed for some batches around it, more of a long training.
        count = len(batches)
        if start > 100:
            count = 60
        elif start:
            count = 15
        rest = batches[start : start + count]
        steps = len(rest) if start else steps
        report = diagnose(
            training.step, training.model, training.optimizer, training.scaler, rest, steps
        )
        if torch.is_autocast_enabled("cpu"):
            # One of the faults leaves a region open, which its last step closes.
            training.step(batches[-1])
        assert not torch.is_autocast_enabled("cpu")
        return report


def found(name: str, report: Report) -> set[str]:
    return {f.name for f in report.findings if f.status is not Status.OK and name in f.faults}


@pytest.mark.filterwarnings("ignore:Detected call of")
@of_each(claims())
def test_claimed_faults_are_found_in_broken_trainings_only(names: list[str]) -> None:
    wrong = {}
    for name in names:
        # The positions of this fault grow over its 16 batches, all of which are diagnosed.
        steps = 16 if name == "positions_in_half" else 6
        broken, fixed = (
            found(name, diagnosed(name, fixed=is_fixed, steps=steps)) for is_fixed in (False, True)
        )
        if not broken & claims()[name] or fixed:
            wrong[name] = broken, fixed
    assert not wrong


def test_a_diagnosis_changes_no_bit_of_a_training() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        diagnosed_case = HEALTHY["mlp_one_cycle"]()
        report = diagnose(
            diagnosed_case.step,
            diagnosed_case.model,
            diagnosed_case.optimizer,
            diagnosed_case.scaler,
            diagnosed_case.batches,
            6,
        )
        torch.manual_seed(0)
        alone = HEALTHY["mlp_one_cycle"]()
        for batch in alone.batches[:6]:
            alone.step(batch)
    assert report.healthy, report
    expected = alone.model.state_dict()
    for name, value in diagnosed_case.model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def examined(make: Callable[[], Case], steps: int) -> Report:
    """Return the diagnosis of the first steps of a training; train a healthy one to its end."""
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
def test_each_broken_training_has_a_finding_with_its_fault(names: list[str]) -> None:
    wrong = {}
    for name in names:
        training, fault = BROKEN[name]
        report = examined(training, steps=60)
        steps = [f.step or 0 for f in report.findings if f.status is Status.BAD]
        # Of findings with the same status, the one of an earlier step comes first.
        assert steps == sorted(steps)
        if not any(f.status is not Status.OK and fault in f.faults for f in report.findings):
            wrong[name] = report
    assert not wrong


def test_torchs_functions_are_restored_after_an_error() -> None:
    def hooked() -> tuple[object, ...]:
        return (
            torch.autograd.backward,
            torch.amp.GradScaler.step,
            torch.amp.autocast_mode.autocast.__enter__,
        )

    before = hooked()
    report = diagnosed("mask_constant", fixed=False)
    assert report.findings[0].name == "exception"
    assert hooked() == before


def test_error_is_reported_with_its_line_and_fault() -> None:
    report = diagnosed("mask_constant", fixed=False)
    (first, *_) = report.findings
    assert first.name == "exception"
    assert first.status == Status.BAD
    assert first.faults == ("mask_constant",)
    assert first.where.startswith("attention.py:")
    assert "labkit explain mask_constant" in str(report)


def test_invalid_arguments_of_diagnose_are_refused() -> None:
    case = HEALTHY["accumulation"]()
    for error, message, wrong in (
        (ValueError, "batches is empty", {"batches": []}),
        (TypeError, "step: expected a function", {"step": 3}),
        (TypeError, "optimizer: expected a torch.optim.Optimizer", {"optimizer": "SGD"}),
        (TypeError, "batches: expected an Iterable, got 3", {"batches": 3}),
        (ValueError, "has no parameter", {"model": torch.nn.ReLU()}),
        (ValueError, "steps: expected a positive", {"steps": 0}),
        (TypeError, "steps: expected an int, got 2.5", {"steps": 2.5}),
    ):
        with pytest.raises(error, match=message):
            diagnose(**{**vars(case), **wrong})


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


def test_a_healthy_script_ends_with_status_0_after_the_steps(tmp_path, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert cli.main(["diagnose", str(script), "--steps", "3"]) == 0
    printed = capsys.readouterr().out
    assert "done 2" in printed
    assert "done 3" not in printed
    # The model is found in the first step, although only after its forward pass.
    assert "called as a whole" not in printed


# The first step ends at the solution, and the others move nothing.
LBFGS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
inputs = torch.randn(64, 3)
targets = inputs @ torch.tensor([[1.0], [2.0], [3.0]])
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)

def closure():
    optimizer.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    return loss

for _ in range(6):
    optimizer.step(closure)
"""


def test_a_solution_in_the_first_step_of_a_closure_is_healthy(tmp_path, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text(LBFGS, encoding="utf-8")
    assert cli.main(["diagnose", str(script)]) == 0
    assert "Nothing wrong was found" in capsys.readouterr().out


def test_a_faulty_script_ends_with_status_1(tmp_path, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert cli.main(["diagnose", str(script), "--steps", "3", "early"]) == 1
    printed = capsys.readouterr().out
    assert "labkit explain clip_before_unscale" in printed
    (clipped,) = (line for line in printed.splitlines() if "clipped while scaled" in line)
    # The loss of step 0 was scaled before the model was found.
    assert "first in step 0" in clipped


def test_a_script_without_a_training_ends_with_status_3(tmp_path, capsys) -> None:
    none = tmp_path / "none.py"
    none.write_text("print('no training')", encoding="utf-8")
    assert cli.main(["diagnose", str(none)]) == 3
    assert "before a training step" in capsys.readouterr().err


def test_a_missing_script_ends_with_status_2(tmp_path, capsys) -> None:
    assert cli.main(["diagnose", str(tmp_path / "missing.py")]) == 2
    assert "there is no script" in capsys.readouterr().err


def test_syntax_error_is_reported_with_its_line(tmp_path, capsys) -> None:
    script = tmp_path / "bad.py"
    script.write_text("loss = (", encoding="utf-8")
    assert cli.main(["diagnose", str(script)]) == 3
    message = capsys.readouterr().err.rstrip()
    assert "SyntaxError" in message
    assert message.endswith("(bad.py, line 1)")


# How a script ends before its first step -> a part of the remedy.
ENDINGS = {
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
def test_an_error_before_the_first_step_has_its_remedy(ending, tmp_path, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text(ending, encoding="utf-8")
    assert cli.main(["diagnose", str(script)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert ENDINGS[ending] in printed
    # The remedies advise this command, which is running already.
    assert "labkit diagnose train.py" not in printed


def test_the_table_of_contributing_counts_faults_and_claims() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    known = set(FAULTS)
    claimed = set(claims())
    assert f"| {len(known)} | {len(claimed)} | {len(claimed)} | 0 | - | 0 |" in text
    assert f"| {len(BROKEN)} | {len(BROKEN)} | {len(BROKEN)} | - | {len(HEALTHY)} | 0" in text
    assert (
        "Not claimed: " + ", ".join(f"`{name}`" for name in sorted(known - claimed)) + "." in text
    )


def test_a_scaler_that_lowers_its_scale_is_healthy() -> None:
    """Clipping makes NaN of the inf in gradients whose step is skipped."""
    for exponent, clip, skipped in ((60, 0.0, 12), (60, 1.0, 12), (18, 0.0, 2), (18, 1.0, 2)):
        # The number of skips depends on the weights.
        torch.manual_seed(0)
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

        def reset() -> None:
            case.scaler.update(2.0**40)

        case = usual(net, opt, classify(net), blobs(12), then=reset, init_scale=2.0**40)
        return case

    (first, *_) = examined(make, steps=12).findings
    assert first.name == "scale does not fall"
    assert first.status == Status.BAD
    assert first.what.startswith("the last 12 steps were skipped, all at a scale of 2^40")


def manually_scaled(
    scale: float,
    divide: Callable[[nn.Module, float], object],
    autocast: bool = True,
    lr: float = 0.01,
) -> Case:
    """Return a training that scales its loss itself; `divide` unscales gradients, or does not."""
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


def divide_in_place(net: nn.Module, scale: float) -> None:
    for p in net.parameters():
        p.grad /= scale


def clip_only(net: nn.Module, _: float) -> None:
    """Clip at a norm that no gradient reaches, so that gradients stay scaled."""
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9)


def test_missing_division_by_the_scale_is_a_fault() -> None:
    forgotten = [
        (1024.0, lambda *_: None),
        (256.0, clip_only),
        (2.0**15, lambda net, _: net.bias.grad.div_(2.0**15)),
    ]

    for scale, divide in forgotten:
        report = examined(partial(manually_scaled, scale, divide, lr=0.01 / scale), steps=4)
        (step,) = (f for f in report.findings if f.name == "a step with scaled gradients")
        # A factor of 256 may be the size of a batch, so it is only a warning.
        assert step.status is (Status.BAD if scale >= 1024 else Status.WARN)
        assert step.what.startswith(
            f"the optimizer got the gradients of the loss times {scale:g}, not divided by it"
        )
        assert step.where.startswith("test_diagnose.py:")


def test_manual_division_by_the_scale_is_not_a_fault() -> None:
    def replace_gradients(net: nn.Module, scale: float) -> None:
        for parameter in net.parameters():
            parameter.grad = parameter.grad / scale

    for scale, divide in ((1024.0, divide_in_place), (2.0**15, replace_gradients)):
        report = examined(partial(manually_scaled, scale, divide), steps=4)
        assert not report.findings[:-1], report


def test_a_factor_that_is_not_a_loss_scale_is_not_a_fault() -> None:
    in_fp32 = partial(manually_scaled, 1024.0, clip_only, autocast=False, lr=1e-5)
    # A factor of 3 is the weight of a loss, and no scale against underflow.
    weighted = partial(manually_scaled, 3.0, clip_only)
    for make in (in_fp32, weighted):
        assert not examined(make, steps=4).findings[:-1]


def test_division_in_hooks_is_not_a_fault() -> None:
    def divided_by_hooks(of_optimizer: bool) -> Case:
        case = manually_scaled(1024.0, lambda *_: None)
        if of_optimizer:
            case.optimizer.register_step_pre_hook(lambda *_: divide_in_place(case.model, 1024.0))
        else:
            for p in case.model.parameters():
                p.register_hook(lambda gradient: gradient / 1024.0)
        return case

    for of_optimizer in (True, False):
        assert not examined(partial(divided_by_hooks, of_optimizer), steps=4).findings[:-1]


def test_overflow_in_a_closure_is_named_as_one_of_forward() -> None:
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
    assert first.name == "overflow"
    assert "forward pass" in first.what


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


def test_script_that_catches_all_exceptions_ends_at_the_limit(tmp_path, capsys) -> None:
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


def test_a_summary_counts_one_step() -> None:
    report = diagnosed("log_of_epsilon", fixed=True, steps=1)
    assert "1 step was run; 0 optimizer steps were taken and 1 skipped" in str(report)


# Of one of three models of a class, the first layer is in no optimizer.
ENSEMBLE = """
import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.first(x))

nets = [Net(), Net(), Net()]
trained = [net.last if number == FAULTY else net for number, net in enumerate(nets)]
optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in trained]
for _ in range(4):
    for net, optimizer in zip(nets, optimizers):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
"""


def test_each_of_three_models_of_one_class_is_examined(tmp_path, capsys) -> None:
    script = tmp_path / "train.py"
    for faulty, layer in enumerate(("first", "Net.first", "Net_2.first")):
        script.write_text(ENSEMBLE.replace("FAULTY", str(faulty)), encoding="utf-8")
        cli.main(["diagnose", str(script)])
        printed = capsys.readouterr().out
        assert f"in no optimizer: {layer}.bias, {layer}.weight" in " ".join(printed.split())


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


def test_a_script_that_skips_every_step_itself_is_at_fault(tmp_path, capsys) -> None:
    (tmp_path / "train.py").write_text(SKIPPED_BY_HAND, encoding="utf-8")
    assert cli.main(["diagnose", str(tmp_path / "train.py")]) == 1
    printed = capsys.readouterr().out
    # The loss is FP16, and a scale of 2^40 is beyond its range.
    assert "overflow: train.py:9" in printed
    assert "1 fault to repair" in printed
    assert "it led to: inf or NaN in the backward pass, no step was taken" in printed
