"""Mixed precision of `labkit.frameworks.fastai`, natively and by masters."""

import copy
import itertools
import math
from collections import Counter

import pytest

from labkit.amp.casting.autocast import current
from labkit.frameworks.fastai.basics import *  # noqa: F403 - as scripts of fastai begin
from labkit.frameworks.fastai.basics import (
    SGD,
    Callback,
    CancelBatchException,
    CancelFitException,
    DataLoaders,
    F,
    Learner,
    nn,
    partial,
    torch,
)
from labkit.frameworks.fastai.callback import core, fp16
from labkit.frameworks.fastai.fp16_utils import convert_network
from tests.frameworks.test_fastai_loop import CANCELS, Reader, by_layer, copies, differ, two_layers

pytestmark = pytest.mark.usefixtures("same_numbers")


class Dtypes(Callback):
    """Lists the dtypes of model, input, prediction and model at four events.

    Its order is before or after the callbacks of mixed precision.
    """

    def __init__(self, order):
        super().__init__()
        self.order = order

    def before_fit(self):
        self.dtypes = {"model before": self.model[0].weight.dtype}

    def before_batch(self):
        self.dtypes["input"] = self.x.dtype

    def after_pred(self):
        self.dtypes["prediction"] = self.pred.dtype

    def after_fit(self):
        self.dtypes["model after"] = self.model[0].weight.dtype


def non_native(**options):
    """Return a learner with the callbacks of mixed precision by master weights."""
    return two_layers(cbs=[fp16.ModelToHalf(), fp16.NonNativeMixedPrecision(**options)])


def test_callbacks_see_fp16_between_those_of_mixed_precision():
    half = torch.float16
    wide = torch.float32
    before = Dtypes(order=-55)
    after = Dtypes(order=65)
    non_native().fit(3, cbs=[before, after])
    assert list(before.dtypes.values()) == [wide, wide, half, half]
    assert list(after.dtypes.values()) == [half, half, wide, wide]


@pytest.mark.parametrize("dynamic", [True, False])
def test_mixed_precision_by_masters_reduces_both_losses(dynamic):
    learn = non_native(dynamic=dynamic)
    learn.fit(3)
    for begin, end in zip(learn.recorder.values[0], learn.recorder.values[-1], strict=True):
        assert end < begin


def test_a_dynamic_scale_moves_below_its_maximum():
    learn = non_native(dynamic=True)
    learn.fit(3)
    assert 1 < learn.non_native_mixed_precision.loss_scale < 2**24


def test_a_static_scale_stays():
    learn = non_native(dynamic=False)
    learn.fit(3)
    assert learn.non_native_mixed_precision.loss_scale == 512


def test_callbacks_of_a_fit_are_removed_after_it():
    learn = two_layers()
    learn.fit(1, cbs=Reader())
    assert not hasattr(learn, "reader")


def with_a_frozen_layer():
    """Return a learner with masters and momentum whose first layer is frozen."""
    learn = two_layers(opt_func=partial(SGD, mom=0.9)).to_non_native_fp16()
    learn.model[0].requires_grad_(False)
    learn.create_opt()
    return learn


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def test_frozen_parameters_are_not_in_the_optimizer():
    learn = with_a_frozen_layer()
    assert set(parameters_of(learn.opt)) == set(learn.model[1].parameters())


def test_after_a_fit_the_optimizer_has_the_model_s_parameters():
    learn = with_a_frozen_layer()
    before = parameters_of(learn.opt)
    learn.fit(3)
    for p, q in zip(before, parameters_of(learn.opt), strict=True):
        assert p is q


def test_momentum_of_masters_is_kept_for_the_parameters():
    learn = with_a_frozen_layer()
    learn.fit(3)
    assert set(learn.opt.state) == set(learn.model[1].parameters())
    for p in learn.model[1].parameters():
        assert "grad_avg" in learn.opt.state[p]


def names_of_callbacks(learn):
    return {type(each).__name__ for each in learn.cbs}


def test_to_non_native_fp32_removes_the_callbacks():
    learn = with_a_frozen_layer()
    learn.to_non_native_fp32().fit(1)
    assert names_of_callbacks(learn) == {"TrainEvalCallback", "Recorder"}


class Injecting(Callback):
    """Makes a gradient of the fourth step infinite, and lists the weights before each step."""

    order = 5

    def __init__(self):
        super().__init__()
        self.weights = []
        self.cancelled = Counter()

    def before_step(self):
        if self.train_iter == 3:
            next(self.model.parameters()).grad.fill_(math.inf)
        self.weights.append(copies(self.model))

    def after_cancel_step(self):
        self.cancelled["step"] += 1

    def after_cancel_batch(self):
        self.cancelled["batch"] += 1

    def unchanged_by(self):
        """Return the steps that changed no weight."""
        pairs = enumerate(itertools.pairwise(self.weights))
        return [i for i, (one, other) in pairs if all(map(torch.equal, one, other))]


def test_native_fp16_takes_the_device_of_its_scaler():
    learn = two_layers().to_fp16(device="cpu", init_scale=64.0)
    learn.fit(1)
    assert learn.mixed_precision.scales[0] == 64.0


def test_native_fp16_cancels_the_step_of_an_inf():
    learn = two_layers().to_fp16(init_scale=64.0)
    injecting = Injecting()
    learn.fit(1, cbs=injecting)
    assert injecting.unchanged_by() == [3]
    assert injecting.cancelled == {"step": 1}
    assert learn.scaler.get_scale() == 32.0


def test_masters_cancel_the_batch_of_an_inf_and_halve_the_scale():
    learn = two_layers().to_non_native_fp16(max_loss_scale=64.0)
    injecting = Injecting()
    learn.fit(1, cbs=injecting)
    assert injecting.unchanged_by() == [3]
    assert injecting.cancelled == {"batch": 1}
    assert learn.non_native_mixed_precision.loss_scale == 32.0


@pytest.mark.parametrize(
    ("way", "callbacks"), [("to_fp16", 1), ("to_bf16", 1), ("to_non_native_fp16", 2)]
)
def test_repeated_call_acts_once(way, callbacks):
    learn = two_layers()
    getattr(learn, way)()
    getattr(learn, way)()
    assert len(learn.cbs) == 2 + callbacks


def cancel_batch(callback):
    raise CancelBatchException


def fail(callback):
    raise KeyError("in a callback")


@pytest.mark.parametrize("way", ["to_fp16", "to_bf16", "to_non_native_fp16"])
def test_a_fit_that_raises_leaves_no_autocast_and_no_fp16(way):
    learn = two_layers()
    getattr(learn, way)()
    learn.fit(1, cbs=Callback(after_pred=cancel_batch))
    assert current() is None
    with pytest.raises(KeyError, match="in a callback"):
        learn.fit(1, cbs=Callback(after_pred=fail))
    assert current() is None
    assert {p.dtype for p in learn.model.parameters()} == {torch.float32}
    learn.fit(1)


# Name of a mixed precision -> a function that gives it to a learner.
WAYS = {
    # Scales at which no gradient overflows, so that the weights are stepped.
    "to_fp16": lambda learn: learn.to_fp16(init_scale=2.0**10),
    "to_bf16": lambda learn: learn.to_bf16(),
    "to_non_native_fp16": lambda learn: learn.to_non_native_fp16(max_loss_scale=2.0**10),
    "flat": lambda learn: learn.to_non_native_fp16(flat_master=True, max_loss_scale=2.0**10),
}


@pytest.mark.parametrize("event", sorted(core.EVENTS - {"after_create"}))
@pytest.mark.parametrize("way", WAYS)
def test_after_a_cancelled_part_the_next_fit_is_a_plain_one(way, event):
    """Each exception is raised at each event, before and after the callbacks of mixed precision."""
    for part, order in itertools.product(CANCELS, (5, 20)):
        learn = WAYS[way](two_layers(n_trn=2, n_val=1, splitter=by_layer))
        raising = RaisesOnce(CANCELS[part])
        actions = {event: raising}
        # This event occurs only in a part that was cancelled.
        if event.startswith("after_cancel_"):
            cancelled = event.removeprefix("after_cancel_")
            actions[f"before_{cancelled}"] = RaisesOnce(CANCELS[cancelled])
        callback = Callback(**actions)
        callback.order = order
        try:
            learn.fit(1, cbs=callback)
        except CANCELS[part]:
            # The event is outside the part that catches the exception.
            assert part != "fit" or event in ("after_fit", "after_cancel_fit")
        assert raising.raised, (part, order)
        assert_plain(learn, case=(event, part, order))


class RaisesOnce:
    """A function of a callback that raises an exception in its first call."""

    def __init__(self, exception):
        self.exception = exception
        self.raised = False

    def __call__(self, callback):
        if not self.raised:
            self.raised = True
            raise self.exception


def assert_plain(learn, case):
    """Assert that nothing of mixed precision is left, and that a fit in FP32 is torch's training.

    Args:
        learn: The learner after a fit.
        case: What happened in the fit, for the message.
    """
    parameters = [*learn.model.parameters()]
    assert current() is None, case
    for p, q in zip(parameters, itertools.chain(*learn.opt.param_lists), strict=True):
        assert p is q, case
        assert p.dtype == torch.float32, case
        assert p.grad is None or not p.grad.any(), case
    plain = copy.deepcopy(learn.model)
    learn.to_fp32().fit(1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=learn.lr)
    for x, y in learn.dls.train:
        optimizer.zero_grad()
        F.mse_loss(plain(x), y).backward()
        optimizer.step()
    assert all(map(torch.equal, plain.parameters(), parameters)), case


class Stop(Callback):
    """Cancels the fit in the fifth batch."""

    def after_pred(self):
        if self.training and self.iter == 4:
            raise CancelFitException


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_fit_keeps_its_weights(way):
    learn = WAYS[way](two_layers())
    before = copies(learn.model)
    learn.fit(3, cbs=Stop)
    assert learn.train_iter == 4
    assert learn.epoch == 0
    assert all(differ(learn.model, before))


class Writing(Callback):
    """Writes 0.5 into weights or masters after the first step was copied into the model."""

    order = 65

    def __init__(self, tensors_of):
        super().__init__()
        self.tensors_of = tensors_of

    def after_step(self):
        if self.train_iter == 0:
            for tensor in self.tensors_of(self):
                tensor.data.fill_(0.5)


def weights_of(callback):
    return callback.model.parameters()


def masters_of(callback):
    return itertools.chain(*callback.non_native_mixed_precision.master_pgs)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("tensors_of", [weights_of, masters_of])
def test_what_a_callback_writes_into_weights_or_masters_stays(tensors_of, flat):
    learn = two_layers().to_non_native_fp16(flat_master=flat, max_loss_scale=2.0**10)
    # The steps after the writing are tiny.
    learn.fit(1, lr=2.0**-20, cbs=Writing(tensors_of))
    for p in learn.model.parameters():
        torch.testing.assert_close(p, torch.full_like(p, 0.5), rtol=0.0, atol=2.0**-10)


def test_sparse_gradients_are_unscaled_for_their_masters():
    weights = []
    for sparse in (False, True):
        torch.manual_seed(7)
        model = nn.Sequential(nn.EmbeddingBag(4, 1, mode="sum", sparse=sparse))
        data = [(torch.tensor([[0, 1], [1, 2]]), torch.ones(2, 1))] * 3
        learn = Learner(DataLoaders(data), model, nn.MSELoss(), SGD, lr=0.125)
        learn.to_non_native_fp16(max_loss_scale=2.0**6).fit(1)
        weights.append(model[0].weight.detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize("way", WAYS)
def test_to_fp32_undoes_every_conversion(way):
    learn = WAYS[way](two_layers())
    assert learn.to_fp32() is learn
    assert names_of_callbacks(learn) == {"TrainEvalCallback", "Recorder"}


def test_to_fp16_with_arguments_of_masters_uses_masters():
    learn = two_layers().to_fp16(max_loss_scale=2048.0, clip=1.0)
    learn.fit(1)
    assert learn.non_native_mixed_precision.loss_scale == 2048.0


def test_to_fp16_replaces_an_earlier_mixed_precision():
    learn = two_layers().to_fp16(max_loss_scale=2048.0)
    assert not hasattr(learn.to_fp16(), "non_native_mixed_precision")


NORMS = [
    nn.BatchNorm1d(4),
    nn.GroupNorm(2, 4),
    nn.LayerNorm(4),
    nn.InstanceNorm1d(4, affine=True),
    BatchNorm(4, ndim=1),  # noqa: F405
]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_a_norm_stays_in_fp32(norm):
    network = convert_network(nn.Sequential(nn.Linear(2, 4), copy.deepcopy(norm)), torch.float16)
    assert [p.dtype for p in network[0].parameters()] == [torch.float16] * 2
    assert [p.dtype for p in network[1].parameters()] == [torch.float32] * 2


def test_a_network_is_converted_back_in_place():
    network = convert_network(nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4)), torch.float16)
    assert convert_network(network, torch.float32) is network
    assert {p.dtype for p in network.parameters()} == {torch.float32}


def test_an_integer_dtype_is_refused():
    with pytest.raises(ValueError, match="expected a dtype"):
        convert_network(nn.Linear(1, 1), torch.int8)
