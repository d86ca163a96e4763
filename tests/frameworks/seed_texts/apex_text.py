"""A script after apex.amp's tutorial.

It has O0 to O3, scale_loss, registered functions, clipping, several losses, and checkpoints.

C51 of data/claims.csv: initialize(model, optimizer, opt_level) and scale_loss(loss, optimizer). The
trainings are repeated by loops that are written with torch alone.
"""

import copy

import torch
import torch.nn.functional as F

from labkit.frameworks.apex import amp

LR, N, D_in, D_out = 0.05, 8, 4, 3


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(D_in, 16), torch.nn.ReLU(), torch.nn.Linear(16, D_out)
    )


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=LR)


numbers = torch.Generator().manual_seed(1)
# the loss of the fourth and fifth batch is so large that FP16 overflows at first
BATCHES = [
    (torch.randn(N, D_in, generator=numbers), factor * torch.randn(N, D_out, generator=numbers))
    for factor in (1.0, 1.0, 1.0, 30.0, 30.0, 1.0, 1.0, 1.0)
]


def train(opt_level, **overrides):
    """Train under apex.

    Args:
        opt_level: "O0" to "O3".
        overrides: further arguments of amp.initialize.

    Returns:
        The model, the dtype of its output, and the loss scale at the end.
    """
    model = make_model()
    optimizer = make_optimizer(model)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level=opt_level, verbosity=0, **overrides
    )
    for x, y in BATCHES:
        optimizer.zero_grad()
        y_pred = model(x)
        loss = F.mse_loss(y_pred, y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    return model, y_pred.dtype, amp.state_dict()["loss_scaler0"]["loss_scale"]


def repeat(forward, weights, scale, dynamic, masters=True):
    """Train by torch alone, and return the loss scale at the end.

    Args:
        forward: (batch, weights) -> outputs, computed in FP16 or in FP32.
        weights: the weights, which the steps change in place.
        scale: the first loss scale.
        dynamic: whether a step with inf or NaN is skipped and halves the scale.
        masters: whether the weights are in FP32; if not, each update is rounded to their dtype.
    """
    for x, y in BATCHES:
        leaves = [w.detach().clone().requires_grad_() for w in weights]
        loss = F.mse_loss(forward(x, leaves).float(), y)
        (loss * scale).backward()
        grads = [leaf.grad.float() for leaf in leaves]
        if dynamic and not all(g.isfinite().all() for g in grads):
            scale /= 2
            continue
        for w, g in zip(weights, grads, strict=True):
            step = LR * (g / scale)
            w.sub_(step if masters else step.to(w.dtype))
    return scale


def half_forward(x, leaves):
    w1, b1, w2, b2 = (leaf.half() for leaf in leaves)
    return F.linear(F.relu(F.linear(x.half(), w1, b1)), w2, b2)


def fp32_forward(x, leaves):
    w1, b1, w2, b2 = leaves
    return F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)


def same(ours, theirs):
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p.detach().float(), q.float(), rtol=2.0**-9, atol=2.0**-9)


# --- O0 to O3 -------------------------------------------------------------------------------------

# O0 is FP32, and equals a plain loop bit for bit
model, dtype, scale = train("O0")
plain = make_model()
optimizer = make_optimizer(plain)
for x, y in BATCHES:
    optimizer.zero_grad()
    F.mse_loss(plain(x), y).backward()
    optimizer.step()
assert all(map(torch.equal, model.parameters(), plain.parameters()))
assert (dtype, scale) == (torch.float32, 1.0)

# O1 casts the arguments of functions, and keeps FP32 weights
model, dtype, scale = train("O1")
weights = [p.detach().clone() for p in make_model().parameters()]
assert scale == repeat(half_forward, weights, 2.0**16, dynamic=True) < 2.0**16
same(model.parameters(), weights)
assert {p.dtype for p in model.parameters()} == {torch.float32}
assert dtype == torch.float16

# O2 has a half model and FP32 masters
model, dtype, scale = train("O2")
weights = [p.detach().clone() for p in make_model().parameters()]
assert scale == repeat(half_forward, weights, 2.0**16, dynamic=True)
same(model.parameters(), weights)
assert {p.dtype for p in model.parameters()} == {torch.float16}
assert dtype == torch.float32

# O3 is half alone, without a scale
model, dtype, scale = train("O3")
weights = [p.detach().half() for p in make_model().parameters()]
assert scale == repeat(half_forward, weights, 1.0, dynamic=False, masters=False) == 1.0
same(model.parameters(), weights)
assert {p.dtype for p in model.parameters()} == {torch.float16}

# arguments replace the properties of a level
_, _, scale = train("O1", loss_scale=128.0)
assert scale == 128.0
_, _, scale = train("O2", loss_scale="128.0", keep_batchnorm_fp32="False", master_weights=True)
assert scale == 128.0
_, _, scale = train("O3", keep_batchnorm_fp32=True, loss_scale="dynamic")
assert scale > 1.0
_, _, scale = train("O1", max_loss_scale=2.0**10, min_loss_scale=2.0**9)
assert 2.0**9 <= scale <= 2.0**10
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
model = amp.initialize(model, opt_level="O2", verbosity=0)
assert (model[0].weight.dtype, model[1].weight.dtype) == (torch.float16, torch.float32)
assert model(torch.randn(2, 1, 5, 5)).dtype == torch.float32

# enabled=False: the script trains as without amp
model = make_model()
optimizer = make_optimizer(model)
model, optimizer = amp.initialize(model, optimizer, enabled=False, opt_level="O1")
for x, y in BATCHES:
    optimizer.zero_grad()
    with amp.scale_loss(F.mse_loss(model(x), y), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
assert all(map(torch.equal, model.parameters(), plain.parameters()))

# --- registered functions -------------------------------------------------------------------------

half = torch.randn(4, 4).half()
amp.register_float_function(torch, "sigmoid")
amp.register_half_function(torch, "cosh")
amp.register_promote_function(torch, "logaddexp")
amp.initialize(make_model(), opt_level="O1", verbosity=0)
assert torch.sigmoid(half).dtype == torch.float32
assert torch.cosh(half.float()).dtype == torch.float16
assert torch.logaddexp(half, half.float()).dtype == torch.float32


@amp.half_function
def mine(a, b):
    return a @ b


@amp.float_function
def wide(a):
    return a.exp()


@amp.promote_function
def both(a, b):
    return a, b


assert mine(half.float(), half.float()).dtype == torch.float16
assert wide(half).dtype == torch.float32
assert {t.dtype for t in both(half, half.float())} == {torch.float32}
with amp.disable_casts():
    assert (half.float() @ half.float()).dtype == torch.float32
assert (half.float() @ half.float()).dtype == torch.float16
amp.initialize(make_model(), opt_level="O1", verbosity=0)
# a registration ends with the next initialize
assert torch.sigmoid(half).dtype == torch.float16

# --- clip between scale_loss and the step ---------------------------------------------------------

for level in ("O1", "O2"):
    model = make_model()
    optimizer = make_optimizer(model)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    before = [p.detach().clone() for p in amp.master_params(optimizer)]
    x, y = BATCHES[0]
    with amp.scale_loss(F.mse_loss(model(x), y), optimizer) as scaled_loss:
        scaled_loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.01)
    assert 0.1 < norm < 100, "the gradients are scaled"
    optimizer.step()
    moved = [a - b.detach() for a, b in zip(before, amp.master_params(optimizer), strict=True)]
    length = torch.cat([m.flatten() for m in moved]).norm()
    torch.testing.assert_close(length, torch.tensor(LR * 0.01), rtol=1e-3, atol=0.0)

# --- several losses and optimizers, several backward passes ---------------------------------------

nets = [make_model(), make_model()]
optimizers = [make_optimizer(net) for net in nets]
nets, optimizers = amp.initialize(nets, optimizers, opt_level="O1", num_losses=2, verbosity=0)
x, y = BATCHES[0]
for loss_id, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
    with amp.scale_loss(F.mse_loss(net(x), y), optimizer, loss_id=loss_id) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
assert sorted(amp.state_dict()) == ["loss_scaler0", "loss_scaler1"]
assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))

ends = []
for parts in (1, 4):
    model = make_model()
    optimizer = make_optimizer(model)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level="O1", loss_scale=64.0, verbosity=0
    )
    for i, (xs, ys) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
        loss = F.mse_loss(model(xs), ys) / parts
        last = i == parts - 1
        with amp.scale_loss(loss, optimizer, delay_unscale=not last) as scaled_loss:
            scaled_loss.backward()
    optimizer.step()
    ends.append([p.detach() for p in model.parameters()])
same(*ends)

# --- a checkpoint ---------------------------------------------------------------------------------

model, _, scale = train("O2")
checkpoint = {"model": copy.deepcopy(model.state_dict()), "amp": amp.state_dict()}
assert {t.dtype for t in checkpoint["model"].values()} == {torch.float32}
model = make_model()
optimizer = make_optimizer(model)
model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
model.load_state_dict(checkpoint["model"])
amp.load_state_dict(checkpoint["amp"])
assert amp.state_dict()["loss_scaler0"]["loss_scale"] == scale
amp.initialize(model, enabled=False)

print("apex: done")
