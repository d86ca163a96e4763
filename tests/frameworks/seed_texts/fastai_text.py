"""A script after fastai's page of callback.fp16.

It has the helpers, the learner, both conversions, and fastai's own checks.

C54 of data/claims.csv: to_fp16() and to_fp32(), a MixedPrecision callback around the same loop. The
trainings are repeated by loops that are written with torch alone.
"""

import math
from copy import deepcopy

from labkit.frameworks.fastai.basics import *  # noqa: F403
from labkit.frameworks.fastai.basics import (
    SGD,
    Adam,
    BatchNorm,
    Callback,
    F,
    Module,
    first,
    listify,
    nn,
    partial,
    set_seed,
    torch,
)
from labkit.frameworks.fastai.callback.fp16 import (
    AMPMode,
    MixedPrecision,
    ModelToHalf,
    NonNativeMixedPrecision,
    get_master,
    grad_overflow,
    test_overflow,
    to_master_grads,
    to_model_params,
)
from labkit.frameworks.fastai.fp16_utils import (
    convert_network,
    master_params_to_model_params,
    model_grads_to_master_grads,
)
from labkit.frameworks.fastai.test_utils import (
    RegModel,
    synth_dbunch,
    synth_learner,
    test_close,
    test_eq,
    test_is,
)

LR = 0.05


def two_layers(**options):
    learn = synth_learner(cuda=False, lr=LR, **options)
    learn.model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    learn.opt_func = partial(SGD, mom=0.0)
    learn.splitter = lambda m: [list(m[0].parameters()), list(m[1].parameters())]
    return learn


def losses_fall(learn):
    for v1, v2 in zip(learn.recorder.values[0], learn.recorder.values[-1], strict=True):
        assert v2 < v1, learn.recorder.values


# --- autocast and a scaler ------------------------------------------------------------------------


class FP16TestCallback(Callback):
    "Asserts that predictions are `float16` values"

    order = 9

    def after_pred(self):
        assert listify(self.pred)[0].dtype == torch.float16


set_seed(99, True)
learn = two_layers(cbs=[MixedPrecision, FP16TestCallback])
learn.fit(3)
assert learn.recorder.values[-1][-1] < learn.recorder.values[0][-1]


class MultiOutputModel(Module):
    def __init__(self):
        self.linear1, self.linear2 = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x):
        return self.linear1(x), self.linear2(x)


def multioutputloss(pred, val):
    return ((val - pred[0]).abs() + 0.5 * (val - pred[1]).abs()).sum()


set_seed(99, True)
learn = synth_learner(cbs=[MixedPrecision, FP16TestCallback], cuda=False)
learn.model = MultiOutputModel()
learn.opt_func = partial(SGD, mom=0.0)
learn.splitter = lambda m: [list(m.linear1.parameters()), list(m.linear2.parameters())]
learn.loss_func = multioutputloss
learn.fit(3)
assert learn.recorder.values[-1][-1] < learn.recorder.values[0][-1]

for mode in (AMPMode.BF16, "bf16"):
    learn = two_layers(cbs=MixedPrecision(amp_mode=mode))
    learn.fit(1)
    assert not learn.scaler.is_enabled()

# --- the model in FP16, except for its norms ------------------------------------------------------

for norm in (nn.BatchNorm1d(30), BatchNorm(30, ndim=1)):
    model = nn.Sequential(nn.Linear(10, 30), norm, nn.Linear(30, 2))
    model = convert_network(model, torch.float16)
    for i, t in enumerate([torch.float16, torch.float32, torch.float16]):
        test_eq(model[i].weight.dtype, t)
        test_eq(model[i].bias.dtype, t)
    test_eq(model(torch.randn(4, 10).half()).dtype, torch.float16)
    model = convert_network(model, dtype=torch.float32)
    test_eq({p.dtype for p in model.parameters()}, {torch.float32})

# --- masters, single and flat ---------------------------------------------------------------------

learn = synth_learner()
learn.model = convert_network(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), torch.float16)
learn.splitter = lambda m: [list(m[0].parameters()), list(m[1].parameters())]
learn.opt = learn.opt_func(learn.splitter(learn.model), learn.lr)
test_eq([len(pg) for pg in learn.opt.param_lists], [2, 2])
for pg, layer in zip(learn.opt.param_lists, learn.model, strict=True):
    for p, q in zip(pg, layer.parameters(), strict=True):
        test_is(p, q)

model_p, master_p = get_master(learn.opt)
test_eq(len(model_p), 2)
test_eq(len(master_p), 2)
for pg1, pg2 in zip(model_p, master_p, strict=True):
    # the same values in another dtype
    test_eq([p.float() for p in pg1], pg2)
    for p in pg1:
        assert p.dtype == torch.float16
    for p in pg2:
        assert p.dtype == torch.float32
        assert p.requires_grad

model_pf, master_pf = get_master(learn.opt, flat_master=True)
test_eq(len(model_pf), 2)
test_eq(len(master_pf), 2)
for pg1, pg2 in zip(model_pf, master_pf, strict=True):
    # one flat tensor
    test_eq(len(pg2), 1)
    test_eq([p.float().squeeze() for p in pg1], list(pg2[0]))
    for p in pg1:
        assert p.dtype == torch.float16

xb, yb = learn.dls.one_batch()
test_eq(xb.shape, (16, 1))
pred = learn.model(xb.half())
loss = F.mse_loss(pred, yb.half())
loss.backward()
to_master_grads(model_p, master_p)
to_master_grads(model_pf, master_pf, flat_master=True)
test_eq([[p.grad.float() for p in pg] for pg in model_p], [[p.grad for p in pg] for pg in master_p])
test_eq(
    [[p.grad.float().squeeze() for p in pg] for pg in model_pf],
    [list(pg[0].grad) for pg in master_pf],
)

before = [p.detach().clone() for pg in master_p for p in pg]
learn.opt.param_lists = master_p
learn.opt.step()
moved = [p for pg in master_p for p in pg]
assert not any(torch.equal(b, p) for b, p in zip(before, moved, strict=True))
to_model_params(model_p, master_p)
test_close([p.float() for pg in model_p for p in pg], [p for pg in master_p for p in pg], eps=1e-3)
before = [pg[0].detach().clone() for pg in master_pf]
learn.opt.param_lists = master_pf
learn.opt.step()
assert not any(torch.equal(b, pg[0]) for b, pg in zip(before, master_pf, strict=True))
to_model_params(model_pf, master_pf, flat_master=True)
test_close(
    [p.float().squeeze() for pg in model_pf for p in pg],
    [p for pg in master_pf for p in pg[0]],
    eps=1e-3,
)

# the masters keep an update that FP16 swallows
with torch.no_grad():
    for pg in master_p:
        for p in pg:
            p.fill_(1.0).sub_(2.0**-12)
to_model_params(model_p, master_p)
test_eq([p.item() for pg in model_p for p in pg], [1.0] * 4)
test_eq([p.item() for pg in master_p for p in pg], [1.0 - 2.0**-12] * 4)

# the functions above call these for each group
model_grads_to_master_grads(model_p[0], master_p[0], flat_master=False)
master_params_to_model_params(model_p[0], master_p[0], flat_master=False)
test_eq(master_p[0][0].grad, model_p[0][0].grad.float())

# --- overflow -------------------------------------------------------------------------------------

x = torch.randn(3, 4)
assert not test_overflow(x)
x[1, 2] = float("inf")
assert test_overflow(x)
x[1, 2] = float("nan")
assert test_overflow(x)
# the sum of both is NaN
assert test_overflow(torch.tensor([math.inf, -math.inf]).half())
# the sum is computed in FP32, so it does not overflow
assert not test_overflow(torch.full((4,), 65504.0).half())

assert not grad_overflow(model_p)
assert not grad_overflow(model_pf)
model_p[1][0].grad.data[0, 0] = float("inf")
model_pf[0][1].grad.data[0] = float("inf")
assert grad_overflow(model_p)
assert grad_overflow(model_pf)

# --- dtypes and gradients at each event -----------------------------------------------------------


class TestBeforeMixedPrecision(Callback):
    order = -55

    def before_fit(self):
        test_eq(first(self.model.parameters()).dtype, torch.float32)

    def before_batch(self):
        test_eq(self.x.dtype, torch.float32)

    def after_pred(self):
        test_eq(self.pred.dtype, torch.float16)

    def after_loss(self):
        self.tst_loss = self.learn.loss_grad.detach().clone()

    def before_step(self):
        self.learn.has_overflown = grad_overflow(self.non_native_mixed_precision.model_pgs)
        self.grads = [p.grad.data.clone() for p in self.model.parameters()]
        self.old_params = [p.data.clone() for p in self.model.parameters()]

    def after_cancel_step(self):
        assert self.has_overflown

    def after_cancel_batch(self):
        assert self.has_overflown


class TestAfterMixedPrecision(Callback):
    order = 65

    def before_fit(self):
        test_eq(first(self.model.parameters()).dtype, torch.float16)

    def after_fit(self):
        test_eq(first(self.model.parameters()).dtype, torch.float32)

    def before_batch(self):
        test_eq(self.x.dtype, torch.float16)

    def after_pred(self):
        test_eq(self.pred.dtype, torch.float32)

    def before_backward(self):
        loss_scale = self.non_native_mixed_precision.loss_scale if self.training else 1.0
        test_eq(self.loss_grad, self.test_before_mixed_precision.tst_loss * loss_scale)

    def before_step(self):
        tbmp = self.test_before_mixed_precision
        # the loss is no longer scaled
        test_eq(self.loss_grad, tbmp.tst_loss)
        # gradients have been copied and scaled back
        test_close(
            [p.grad.data for pg in self.non_native_mixed_precision.master_pgs for p in pg],
            [g.float() / self.non_native_mixed_precision.loss_scale for g in tbmp.grads],
        )

    def after_batch(self):
        if self.has_overflown:
            return
        tbmp, mp = self.test_before_mixed_precision, self.non_native_mixed_precision
        # master params have been copied to the model
        test_close(
            [p.data for pg in mp.master_pgs for p in pg],
            [p.data.float() for p in self.model.parameters()],
            eps=1e-3,
        )
        # the update has been done properly
        for p, g, op in zip(self.model.parameters(), tbmp.grads, tbmp.old_params, strict=True):
            if self.training:
                test_close(
                    p.data.float(), op.float() - self.lr * g.float() / mp.loss_scale, eps=1e-3
                )


for dynamic in (True, False):
    set_seed(99)
    learn = two_layers(cbs=[ModelToHalf(), NonNativeMixedPrecision(dynamic=dynamic)])
    learn.fit(3, cbs=[TestAfterMixedPrecision(), TestBeforeMixedPrecision()])
    # a dynamic scale has changed from 2**24
    if dynamic:
        assert 1 < learn.non_native_mixed_precision.loss_scale < 2**24
    else:
        test_eq(learn.non_native_mixed_precision.loss_scale, 512)
    losses_fall(learn)
    # callbacks that are passed to fit belong to the learner only during that fit
    assert not hasattr(learn, "test_after_mixed_precision")

set_seed(99)
learn = two_layers()
test_is(learn.to_non_native_fp16(), learn)
learn.fit(3, cbs=[TestAfterMixedPrecision(), TestBeforeMixedPrecision()])
losses_fall(learn)

# --- frozen groups, discriminative learning rates -------------------------------------------------

set_seed(99)
learn = two_layers()
learn.opt_func = partial(SGD, mom=0.9)
learn.to_non_native_fp16()
learn.freeze()
learn.create_opt()
init_ps = [p for pg in learn.opt.param_groups for p in pg["params"]]
frozen = [p.detach().clone() for p in learn.model[0].parameters()]
learn.fit(3)
final_ps = [p for pg in learn.opt.param_groups for p in pg["params"]]
for p1, p2 in zip(init_ps, final_ps, strict=True):
    test_is(p1, p2)
# the first group has no averages, because it is not trained
test_eq([learn.opt.state[p] for p in learn.opt.param_lists[0]], [{}, {"do_wd": False}])
for p in learn.opt.param_lists[1]:
    assert "grad_avg" in learn.opt.state[p]
# frozen weights were rounded to FP16 once
test_close(list(learn.model[0].parameters()), frozen, eps=2.0**-10)
learn = learn.to_non_native_fp32()
learn.unfreeze()
learn.fit(1)
assert first(learn.model.parameters()).item() != frozen[0].item()

learn = two_layers()
learn.create_opt()
learn.opt.set_hyper("lr", slice(1e-4, 1e-2))
test_eq([hyper["lr"] for hyper in learn.opt.hypers], [1e-4, 1e-2])
before = deepcopy(learn.model)
learn.fit(1, lr=[0.0, 0.1])
test_eq(list(before[0].parameters()), list(learn.model[0].parameters()))
assert before[1].weight.item() != learn.model[1].weight.item()

# --- RegModel and synth_dbunch --------------------------------------------------------------------

learn = synth_learner(data=synth_dbunch(bs=8, n_train=4), model=RegModel())
learn.opt_func = Adam
learn.fit(2)
test_eq([len(row) for row in learn.recorder.values], [2, 2])

# --- both conversions, beside loops of torch alone ------------------------------------------------


def trained(convert):
    """Return the weights after three epochs with a learner, and the learner."""
    set_seed(7)
    learn = two_layers()
    test_is(convert(learn), learn)
    # the seed of the order of the batches
    set_seed(8)
    learn.fit(3)
    return [p.detach().clone() for p in learn.model.parameters()], learn


def repeated(step):
    """Return the weights after three epochs by a loop of torch.

    Args:
        step: (model, inputs, targets): trains on one batch.
    """
    set_seed(7)
    learn = two_layers()
    set_seed(8)
    for _ in range(3):
        for x, y in learn.dls.train:
            step(learn.model, x, y)
        # the loader of the validation set draws a random number, too
        for _ in learn.dls.valid:
            pass
    return [p.detach().clone() for p in learn.model.parameters()]


def fp32_step(model, x, y):
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    sgd.zero_grad()
    F.mse_loss(model(x), y).backward()
    sgd.step()


class NativeStep:
    """A step under torch.amp on a CPU."""

    def __init__(self, **scaler):
        self.scaler = torch.amp.GradScaler("cpu", **scaler)

    def __call__(self, model, x, y):
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        sgd.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x)
        loss = F.mse_loss(pred.float(), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(sgd)
        self.scaler.update()


class MastersStep:
    """A step of FP32 masters by the gradients of an FP16 copy of the model.

    Args:
        scale: the first loss scale, which an overflow halves.
    """

    def __init__(self, scale):
        self.scale = scale
        self.has_stepped = False

    def __call__(self, model, x, y):
        # the first masters are the weights of the FP16 model
        if not self.has_stepped:
            self.has_stepped = True
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(p.half())
        half = deepcopy(model).half()
        loss = F.mse_loss(half(x.half()).float(), y)
        (loss * self.scale).backward()
        grads = [p.grad.float() for p in half.parameters()]
        if not all(g.isfinite().all() for g in grads):
            self.scale /= 2
            return
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= LR * (g / self.scale)


fp32, learn = trained(lambda learn: learn.to_fp32())
losses_fall(learn)
test_eq(fp32, repeated(fp32_step))

native = NativeStep(init_scale=2.0**20)
fp16, learn = trained(lambda learn: learn.to_fp16(init_scale=2.0**20))
losses_fall(learn)
test_eq(fp16, repeated(native))
test_eq(learn.scaler.get_scale(), native.scaler.get_scale())
# of 30 steps, some were skipped
assert len(learn.mixed_precision.scales) < 30
assert any(a.item() != b.item() for a, b in zip(fp16, fp32, strict=True))

by_hand = MastersStep(2.0**24)
non_native, learn = trained(lambda learn: learn.to_non_native_fp16())
losses_fall(learn)
test_eq(non_native, [p.half().float() for p in repeated(by_hand)])
test_eq(learn.non_native_mixed_precision.loss_scale, by_hand.scale)

# to_fp32 removes the callback that to_fp16 has added
set_seed(99)
learn = two_layers().to_fp16()
assert hasattr(learn, "mixed_precision")
test_is(learn.to_fp32(), learn)
assert not hasattr(learn, "mixed_precision")
learn.fit(3)
losses_fall(learn)

# as in early versions of fastai, to_fp16 with arguments of masters is non-native
set_seed(99)
learn = two_layers().to_fp16(max_loss_scale=2048.0)
learn.fit(3, cbs=[TestAfterMixedPrecision(), TestBeforeMixedPrecision()])
losses_fall(learn)

print("fastai: done")
