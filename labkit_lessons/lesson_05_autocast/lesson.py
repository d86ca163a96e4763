# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] on_the_map="which operation runs in which dtype and what it costs; one training step, tensor by tensor"
# # 05 · Autocast
#
# **You will be able to** say in which dtype each operation of a network runs, and why. You see what
# it would cost if it ran in another dtype. You follow one training step, tensor by tensor, from its
# weights back to its weights.
#
# About 110 minutes. Builds on: FP16 ends at 65504 and rounds to 11 bits (lessons 01 and 02). Five
# exercises, 34 points.

# %% id="setup"
from copy import deepcopy
from dataclasses import replace
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import Rule, autocast, register
from labkit.bench import published
from labkit.formats import FP16
from labkit.frameworks.torch_amp import autocast as torch_autocast
from labkit.grading import check
from labkit.train import TASKS, single_digits
from labkit.widgets import CastLedger, StepDebugger, predict

# %% [markdown]
# ## 1 · Casts that you do not write
#
# A network has FP32 weights and gets FP32 inputs. To *cast* a tensor is to change its dtype. With
# one line, `with autocast(FP16):`, many operations of the network run in FP16. Which ones?

# %% id="predict-dtypes"
predict("autocast.dtypes")

# %% id="touch-dtypes" tags=["claim-C25", "answer-autocast.dtypes"]
torch.manual_seed(0)
layer = nn.Linear(64, 64)
x = torch.randn(32, 64)
with autocast(FP16):
    y = layer(x)
    loss = F.mse_loss(y, torch.zeros(32, 64))
print("x", x.dtype, "  linear", y.dtype, "  mse_loss", loss.dtype)

# %% [markdown]
# Now a whole network. Each row is one operation of its forward pass. You see its operands, its list
# and the reason, its result, and the difference from the same network in FP32. The coloured bar on
# the left shows the format. **Click another list**, or reach a row with Tab and use the arrow keys.


# %% id="touch-ledger" tags=["claim-C24"]
class Classifier(nn.Module):
    """Two convolutions, a mean over the pixels, a linear layer, and the loss."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, images, labels):
        h = F.relu(self.norm1(self.conv1(images)))
        h = F.relu(self.norm2(self.conv2(h)))
        return F.cross_entropy(self.head(h.mean(dim=(2, 3))), labels)


torch.manual_seed(0)
digits = single_digits()
inputs = digits.train_inputs[:64]
targets = digits.train_targets[:64]
CastLedger(Classifier(), inputs, targets, title="A small classifier")

# %% [markdown]
# There are three lists. Most operations are on none of them.
#
# | list | what autocast does | for example | why |
# |---|---|---|---|
# | **allow list** | casts the operands to FP16 | `linear`, `conv2d`, `matmul` | most of the work is here, and FP16 costs little: only operands and result are rounded |
# | **deny list** | casts the operands to FP32 | `exp`, `layer_norm`, losses | the result leaves FP16's range, or many terms are added up |
# | **promote list** | casts all operands to the widest dtype among them | `addcmul`, `dot` | the operands must agree |
# | no list (**keep**) | nothing | `relu`, `mean`, `batch_norm` | the operation works in any format |
#
# How much does one rounding to FP16 cost? At most this *relative error*:
#
# $$\left|\frac{\text{rounded}(x) - x}{x}\right| \le 2^{-11} \approx 0.05\,\%,$$
#
# the mark on each bar. A product of matrices rounds its operands and its result. The sum in between
# is kept at about FP32's precision: lesson 03 has the exact rule.
#
# Now move `cross_entropy` to *allow*: the loss keeps only three decimal digits, but no more than
# that is lost. Kernels of this kind compute in FP32 inside. Only their inputs and results are
# rounded. Section 3 shows where this hurts more.
#
# **Whose lists are these?** They are those of torch *on a GPU* (CUDA). The lab uses them on every
# machine. torch's own autocast for the *CPU* has other lists:

# %% id="touch-cpu-lists"
h = torch.randn(4, 8).half()
operations = {
    "linear": lambda: F.linear(h, torch.eye(8)),
    "softmax": lambda: torch.softmax(h, dim=-1),
    "exp": lambda: torch.exp(h),
    "sum": lambda: torch.sum(h),
    "mse_loss": lambda: F.mse_loss(h, torch.zeros(4, 8)),
}
print("an FP16 tensor in:  the lab, and torch on a GPU    torch on the CPU")
for name, run in operations.items():
    with autocast(FP16):
        as_cuda = run().dtype
    with torch.autocast("cpu", torch.float16):
        as_cpu = run().dtype
    print(f"{name:<20}{as_cuda!s:<27}{as_cpu}")

# %% [markdown]
# So `softmax`, `exp` and `sum` stay in FP16 on the CPU. Texts about autocast are nearly always
# about GPUs. Before you train with `torch.autocast("cpu", ...)`, look at its own list.
#
# **Name the dtype.** Without one, `torch.autocast("cuda")` means FP16, and needs a loss scale.
# `torch.autocast("cpu")` means BF16, and needs none. The same line of code is another training on
# another device:

# %% id="touch-default-dtype"
for device in ("cuda", "cpu"):
    print(f'torch.autocast("{device}") casts to', torch.get_autocast_dtype(device))

# %% [markdown]
# **And is the GPU's list true?** torch's documentation has `cross_entropy` among the operations
# that run in FP32. But `cross_entropy` has two parts: `log_softmax`, and the mean of its results
# for the right classes. torch calls the first part *with a dtype*, that of the logits. Autocast
# respects a dtype that is named. So FP16 logits get an FP16 `log_softmax`. The lab's `autocast`
# keeps it in FP32. `labkit.frameworks.torch_amp` has torch's behaviour. How much do they differ?
# Here a network answers 4,096 times, and its best class is right each time. The larger the spread
# of its logits, the surer it is.

# %% id="touch-cross-entropy" tags=["claim-C63"]
print("               mean loss in            losses that are 0 in")
print("spread      FP32   torch on a GPU       FP32   torch on a GPU    gradient off by")
for spread in (1, 4, 16, 64):
    logits = (spread * torch.randn(4096, 10, generator=torch.Generator().manual_seed(0))).half()
    losses = []
    gradients = []
    for region in (autocast(FP16), torch_autocast("cpu", torch.float16)):
        given = logits.clone().requires_grad_()
        with region:
            losses.append(F.cross_entropy(given, logits.argmax(1), reduction="none"))
        (1024 * losses[-1].mean()).backward()  # scaled, so that FP16 holds the gradients
        gradients.append(given.grad.float())
    means = [loss.mean().item() for loss in losses]
    zeros = [(loss == 0).float().mean().item() for loss in losses]
    off = ((gradients[1] - gradients[0]).norm() / gradients[0].norm()).item()
    print(f"{spread:>4}{means[0]:>12.5f}{means[1]:>17.5f}", end="")
    print(f"{zeros[0]:>11.0%}{zeros[1]:>17.0%}{off:>19.2%}")

# %% [markdown]
# The mean hardly differs: the roundings go up as often as down. The small losses differ. A loss
# below $2^{-25}$ is 0 in FP16, so a sure network gets more losses of exactly 0. If you compare
# losses exactly, or weight single examples by their loss, write
# `F.cross_entropy(logits.float(), classes)`. Then it is FP32 everywhere.
#
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. Grading runs only the exercise's own cell, with the imports, functions,
# classes and constants of other cells that it uses. Do not change the arguments of your function:
# sort or overwrite a copy.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("autocast.lists")`: you get
# three hints, one by one, at no cost.*
#
# ### Exercise 1: thirty operations, four lists  ●○○  6 min
#
# Ask for each operation: is it a product of matrices? Does it leave FP16's range, or add up many
# terms? Must several operands agree? If the answer is always no, it is on no list: "keep". (torch
# has a fourth list, *set dtype*, for softmax and sum: they get FP32. It counts as "deny" here.)
# Decide first; the lab's `rule_for` knows them all, and tells you afterwards which ones surprised
# you.


# %% id="exercise-autocast-lists" tags=["exercise-autocast.lists"]
def my_list(op):
    """Return "allow", "deny", "promote" or "keep".

    Args:
        op: One of: linear, matmul, bmm, addmm, conv1d, conv2d, conv3d, einsum;
            softmax, log_softmax, exp, log, pow, sum, prod, layer_norm, group_norm,
            cross_entropy, mse_loss, nll_loss;
            addcmul (a + b * c), addcdiv (a + b / c), cross, atan2;
            relu, dropout, max_pool2d, avg_pool2d, reshape, batch_norm.
    """
    ### BEGIN SOLUTION
    if op in ("linear", "matmul", "bmm", "addmm", "conv1d", "conv2d", "conv3d", "einsum"):
        return "allow"
    if op in ("relu", "dropout", "max_pool2d", "avg_pool2d", "reshape", "batch_norm"):
        return "keep"
    return "promote" if op in ("addcmul", "addcdiv", "cross", "atan2") else "deny"
    ### END SOLUTION


check("autocast.lists", my_list)

# %% [markdown]
# ## 2 · Where are the weights?

# %% id="predict-weights"
predict("autocast.weights")

# %% id="touch-weights" tags=["claim-C27", "answer-autocast.weights"]
torch.manual_seed(0)
layer = nn.Linear(64, 64)
x = torch.randn(32, 64)
optimizer = torch.optim.Adam(layer.parameters())
with autocast(FP16):
    y = layer(x)
    loss = F.mse_loss(y, torch.zeros(32, 64))
y.register_hook(lambda gradient: print("gradient of the activation", gradient.dtype))
loss.backward()
optimizer.step()
print("weight", layer.weight.dtype, "  its gradient", layer.weight.grad.dtype)
state = optimizer.state[layer.weight]["exp_avg"]
print("activation", y.dtype, "  loss", loss.dtype, "  Adam's state", state.dtype)

# %% [markdown]
# How much does this cost? Take the same layer and input without autocast. Enter the number that you
# expect.


# %% id="predict-error"
def apart_in_percent():
    """Return how far the layer's output in autocast is from its FP32 output, in percent of it."""
    with torch.no_grad():
        in_fp32 = layer(x)
        with autocast(FP16):
            in_fp16 = layer(x).float()
    return 100 * float((in_fp16 - in_fp32).norm() / in_fp32.norm())


predict("autocast.error", apart_in_percent)

# %% [markdown] tags=["answer-autocast.weights"]
# The weight was never FP16. Autocast casts a *copy* of it for the product. The backward pass sends
# the gradient back through that cast: before the cast it is FP16, after it FP32. So the optimizer
# sees FP32 weights and FP32 gradients. Nothing else is needed: the FP32 weights *are* the master
# weights. (If a model is stored in FP16 with `model.half()`, it has no FP32 weights. Then a
# separate FP32 copy is needed: lesson 07.)
#
# And where does `loss.backward()` belong, inside the block or outside? For torch's own operations
# it makes no difference: their backward runs in the dtype of their forward. But a backward pass
# that is written in Python is code like any other:

# %% id="touch-backward" tags=["claim-C26"]
rotation = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))[0]


class Rotated(torch.autograd.Function):
    """Passes x on as it is, and rotates its gradient, in FP32."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ rotation


def gradient(function, inside):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with torch.autocast("cpu", torch.float16):  # torch's own
        loss = function(x).float().square().mean()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return x.grad


for name, function in (("linear", layer), ("written in Python", Rotated.apply)):
    apart = gradient(function, inside=True) - gradient(function, inside=False)
    most = apart.abs().max().item()
    print(f"{name:<18} backward inside or outside: gradients differ by up to {most:.1e}")

# %% [markdown]
# Inside the block, torch's autocast turned the FP32 rotation into an FP16 one. Call `backward`
# outside. (The lab's autocast does nothing while a backward pass runs. torch has `custom_fwd` and
# `custom_bwd` for functions like this one.)
#
# ### Exercise 2: follow the dtypes  ●●○  8 min
#
# A forward pass is a list of steps: `("h1", "allow", ("x", "w"))` computes `h1` from `x` and `w`
# with an operation of the allow list. `given` holds the dtypes of the inputs. Return the dtype of
# each step's result.


# %% id="exercise-autocast-dtypes" tags=["exercise-autocast.dtypes"]
def my_dtypes(steps, given):
    """Return a list with "FP16" or "FP32" for the result of each step.

    Args:
        steps: List of (result, rule, operands).
            A rule is "allow", "deny", "promote" or "keep" (which has one operand).
        given: Dict: name of an input -> "FP16" or "FP32".
    """
    ### BEGIN SOLUTION
    known = dict(given)
    results = []
    for result, rule, operands in steps:
        arriving = [known[name] for name in operands]
        if rule == "allow":
            known[result] = "FP16"
        elif rule == "deny":
            known[result] = "FP32"
        else:
            known[result] = "FP32" if "FP32" in arriving else "FP16"
        results.append(known[result])
    return results
    ### END SOLUTION


check("autocast.dtypes", my_dtypes)

# %% [markdown]
# ### Exercise 3: a linear layer, cast by hand  ●●●  15 min
#
# Write what `F.linear` does under autocast, forward and backward. In the lab a product of FP16
# operands is added up in FP32 and rounded to FP16 *once*, at the end:
# `(a.float() @ b.float()).half()`. (A Tensor Core comes close to that; lesson 03 has its exact
# rule.) The three products are
#
# $$Y = X W^T + b, \qquad dX = dY\, W, \qquad dW = dY^T X.$$


# %% id="exercise-autocast-linear" tags=["exercise-autocast.linear"]
def my_linear(x, weight, bias, grad_y):
    """Return (y in FP16, grad_x in FP32, grad_weight in FP32).

    Args:
        x: FP32 [n, in].
        weight: FP32 [out, in].
        bias: FP32 [out].
        grad_y: FP16 [n, out]: the gradient that arrives from the layers above.
    """
    ### BEGIN SOLUTION
    x16 = x.half()
    w16 = weight.half()
    b16 = bias.half()
    y = (x16.float() @ w16.float().T + b16.float()).half()
    grad_x = (grad_y.float() @ w16.float()).half().float()
    grad_weight = (grad_y.float().T @ x16.float()).half().float()
    return y, grad_x, grad_weight
    ### END SOLUTION


check("autocast.linear", my_linear)

# %% [markdown]
# ## 3 · What the deny list is for

# %% id="predict-softmax"
predict("autocast.softmax")

# %% id="touch-softmax" tags=["claim-C32", "answer-autocast.softmax"]
for largest in (11.0, 12.0):
    logits = torch.tensor([largest, 0.0]).half()
    powers = logits.exp()
    by_hand = powers / powers.sum()
    print(f"logits {logits.tolist()}   exp {powers.tolist()}   by hand {by_hand.tolist()}")
    print(f"{'':<21}torch.softmax {torch.softmax(logits, dim=0).tolist()}")
print("exp leaves FP16 above log(65504) =", round(torch.tensor(65504.0).log().item(), 2))

# %% [markdown]
# Divide every power by the largest one. On paper nothing changes. In FP16 everything does:
#
# $$\frac{e^{z_i}}{\sum_j e^{z_j}} = \frac{e^{z_i - m}}{\sum_j e^{z_j - m}}, \qquad m = \max_j z_j.$$
#
# torch's softmax does this, and also computes in FP32.
#
# Below is a transformer block whose normalisation and softmax are written by hand. It has one large
# activation, as real transformers do. Autocast keeps it correct, because `pow`, `rsqrt`, `exp` and
# `sum` are on the deny list.
#
# **Move each of them to *allow*, and back.** Which one ends in NaN? Which one does no harm here?
# Which two do damage that you would not notice? Then try *All allowed*, with FP16 and with BF16.


# %% id="touch-block"
class Block(nn.Module):
    """Normalise, attend, add: a transformer block without a single official norm or softmax."""

    def __init__(self, width=64):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        nn.init.normal_(self.qkv.weight, std=0.1)  # attention as sharp as a trained one's

    def forward(self, x):
        h = x * (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
        q, k, v = self.qkv(h).chunk(3, dim=-1)
        powers = (q @ k.mT).exp()
        attention = powers / powers.sum(dim=-1, keepdim=True)
        return x + self.out(attention @ v)


torch.manual_seed(0)
activations = torch.randn(2, 16, 64)
activations[0, 0, 7] = 300.0
CastLedger(Block(), activations, title="A transformer block, written by hand")

# %% [markdown]
# `exp` ends in NaN, and `rsqrt` does no harm. `pow` and `sum` are the dangerous ones. Their result
# overflows to inf, and this inf is a divisor later: $1/\infty$ is 0. One token is switched off,
# without a NaN and without an error.
#
# So each result that is stored *between* two operations has to fit into FP16. An official
# `layer_norm` or `softmax` is one operation, so nothing is stored in between. BF16 does not
# overflow here, but it is coarser everywhere.
#
# People say that batch norm "stays in FP32". Does it?

# %% id="touch-batch-norm" tags=["claim-C31"]
conv = nn.Conv2d(3, 8, 3)
norm = nn.BatchNorm2d(8)
with autocast(FP16):
    h = conv(torch.randn(4, 3, 16, 16))
    normalised = norm(h)
print("takes", h.dtype, "  gives", normalised.dtype)
print("its weight", norm.weight.dtype, "  its running mean", norm.running_mean.dtype)

# %% [markdown]
# That is half true. Its weights, its statistics and its arithmetic are FP32. Its input and output
# are FP16. It is on no list, because its kernel always computes in FP32.
#
# ### Exercise 4: a softmax that survives FP16  ●●○  8 min
#
# Your logits arrive in FP16, one example per row. Return FP16 probabilities. torch has this in one
# line; write it with `exp`, `max` and `sum`, to see where it could fail. It should work for logits
# of 6,000 and of -500. Compute in FP32, and round once, at the end.


# %% id="exercise-autocast-softmax" tags=["exercise-autocast.softmax"]
def my_softmax(logits):
    """Return the softmax of each row in FP16; logits is FP16 [n, classes]."""
    ### BEGIN SOLUTION
    wide = logits.float()
    powers = torch.exp(wide - wide.max(dim=1, keepdim=True).values)
    return (powers / powers.sum(dim=1, keepdim=True)).half()
    ### END SOLUTION


check("autocast.softmax", my_softmax)

# %% [markdown]
# ## 4 · Off the lists, and by hand
#
# People say three things:
#
# - *einsum does not gain from FP16*;
# - *a function that is on no list must be registered first*;
# - *if you cast by hand, or pass `.half()` tensors, autocast no longer works*.
#
# Which of them are true?

# %% id="predict-hand"
predict("autocast.hand")

# %% id="touch-einsum" tags=["claim-C28"]
from torch.utils._python_dispatch import TorchDispatchMode


class Kernels(TorchDispatchMode):
    """Hears which kernels an operation calls, below autocast."""

    def __torch_dispatch__(self, kernel, types, args=(), kwargs=None):
        heard.append(str(kernel))
        return kernel(*args, **(kwargs or {}))


heard = []
a = torch.randn(8, 16, 32)
b = torch.randn(8, 32, 24)
with autocast(FP16), Kernels():
    product = torch.einsum("bij,bjk->bik", a, b)
moves_only = ("view", "permute", "squeeze")
print([name for name in heard if not any(part in name for part in moves_only)])
with autocast(FP16):
    print("einsum gives", product.dtype, end=" ")
    print("and equals a @ b to the bit:", torch.equal(product, a @ b))

# %% [markdown]
# `einsum` *is* a product of matrices. After two casts it calls `bmm`, and a `bmm` of FP16 is what
# Tensor Cores do.


# %% id="touch-register" tags=["claim-C29"]
def energy(h):
    """A function that is on no list: its own operations are."""
    return (h * h).sum(dim=-1)


h = torch.full((1, 64), 300.0).half()
with autocast(FP16):
    unsafe = energy(h)
    squares = h * h
    print("not registered:       h * h", squares.max().item(), end="   ")
    print("energy", unsafe.item(), unsafe.dtype)
    with register(energy, Rule.DENY) as safe_energy:
        print("registered as float:  energy", safe_energy(h).item())

# %% [markdown]
# You do not have to register anything. The lists apply to the operations *inside* a function too.
# `h * h` is on no list, so it stays in FP16. Register a function where that is wrong. Here it is
# wrong: $300^2$ overflows inside the function.

# %% id="touch-hand" tags=["claim-C30", "answer-autocast.hand"]
torch.manual_seed(0)
layer = nn.Linear(64, 64)
x = torch.randn(32, 64)
big = torch.full((4,), 300.0)
with autocast(FP16):
    print("linear of x.half() equals linear of x:", torch.equal(layer(x.half()), layer(x)))
    loss = F.mse_loss(big.half(), torch.zeros(4))
    print("mse_loss of big.half():", loss.item(), "  (a deny list casts back)")
    print("big.half() * big.half():", (big.half() * big.half())[0].item(), end="   ")
    print("big * big:", (big * big)[0].item())
model = nn.Linear(1, 1).half()  # and by hand on the weights
with torch.no_grad():
    model.weight.fill_(1.0)
    for _ in range(1000):
        model.weight -= 2.0**-12
print("a weight of 1 in model.half(), after 1000 updates of -2^-12:", model.weight.item())

# %% [markdown] tags=["answer-autocast.hand"]
# | you cast by hand ... | what happens |
# |---|---|
# | the operand of an operation on the allow list | nothing changes: autocast would cast it too |
# | the operand of an operation on the deny list | autocast casts it back to FP32; the rounding to FP16 remains |
# | the operand of an operation on no list | it stays FP16, and may overflow: 300 * 300 is inf |
# | the whole model, `model.half()` | the optimizer has no FP32 weights, and small updates are swallowed |

# %% [markdown]
# **An adapter promotes.** *LoRA* leaves a 16-bit layer as it is, and adds a second way beside it:
# two small FP32 layers, A and then B. Only these two learn. An FP16 tensor plus an FP32 tensor is
# FP32: torch *promotes*. So the result of one adapted layer makes all that follows FP32, without a
# word:


# %% id="touch-lora"
class Adapted(nn.Module):
    """A layer in FP16 with an FP32 adapter, then a second layer."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(64, 64).half()
        self.a = nn.Linear(64, 4, bias=False)
        self.b = nn.Linear(4, 64, bias=False)
        self.last = nn.Linear(64, 10)

    def forward(self, x, labels):
        adapted = self.base(x.half()) + self.b(self.a(x))
        self.dtype = adapted.dtype
        return F.cross_entropy(self.last(adapted.relu()), labels)


torch.manual_seed(0)
model = Adapted()
images = digits.train_inputs[:64].flatten(1)
model(images, digits.train_targets[:64])
print("without autocast, the sum of FP16 and FP32 is", model.dtype)
with autocast(FP16):
    model(images, digits.train_targets[:64])
print("under autocast it is", model.dtype)
CastLedger(model, images, digits.train_targets[:64], title="A layer with an adapter")

# %% [markdown]
# Under autocast linear layers are on the allow list, A and B too. So both terms are FP16, and
# nothing is promoted. Without autocast, write the cast yourself:
# `base + self.b(self.a(x)).to(base.dtype)`, where `base` is what the layer returns. The layers that
# follow must then be in FP16 as well. (`peft` does so. Its adapters are in FP32 by default,
# `autocast_adapter_dtype=True`.)

# %% [markdown]
# One more thing is hidden. A weight that is used twice is cast once: autocast keeps the FP16 copy
# until the block ends. This is the *cast cache*. But what if the weight changes inside the block?
# Compare the lab's autocast with torch's own:

# %% id="touch-cache"
layer = nn.Linear(64, 64)
x = torch.randn(32, 64)
with autocast(FP16) as region:
    for _ in range(10):
        layer(x)
    print("the lab: casts made:", region.cache.misses, "  casts saved:", region.cache.hits)


def halved_inside(block):
    """Return whether the layer's result changes when its weights are halved inside the block."""
    layer = nn.Linear(64, 64)
    with block, torch.no_grad():
        before = layer(x)
        layer.weight.mul_(0.5)
        layer.bias.mul_(0.5)
        return not torch.equal(layer(x), before)


in_torch = torch.autocast("cpu", torch.float16)
print("the lab's autocast sees the new weights:  ", halved_inside(autocast(FP16)))
print("torch.autocast sees the new weights:      ", halved_inside(in_torch))

# %% [markdown]
# The lab's cache notices that the weight was edited, and casts again. torch's does not: the second
# result comes from the *old* weight, without a warning. In a usual training this does not happen,
# because weights change after the block. But remember it if you edit weights inside the block.
#
# ### Exercise 5: a cache that sees edits  ●●○  10 min
#
# Process a list of events:
#
# - `("use", "w1")`: a layer wants the FP16 cast of `weights["w1"]`.
# - `("edit", "w1")`: someone multiplies it by 0.5 in place. Here your function does so: it changes
#   the tensor in `weights`.
# - `("close", "")`: the autocast block ends, and the cache is emptied.
#
# Cast as rarely as you can, and never use a cast that is out of date. `tensor._version` counts a
# tensor's in-place edits.


# %% id="exercise-autocast-cache" tags=["exercise-autocast.cache"]
def my_casts(weights, events):
    """Return (list of the FP16 tensors that were used, in order; how many casts were made).

    Args:
        weights: Dict: name -> FP32 tensor.
        events: List of (kind, name).
    """
    ### BEGIN SOLUTION
    cache = {}
    used = []
    casts = 0
    for kind, name in events:
        if kind == "edit":
            weights[name].mul_(0.5)
        elif kind == "close":
            cache.clear()
        else:
            weight = weights[name]
            if name not in cache or cache[name][0] != weight._version:
                cache[name] = weight._version, weight.half()
                casts += 1
            used.append(cache[name][1])
    return used, casts
    ### END SOLUTION


check("autocast.cache", my_casts)

# %% [markdown]
# ## 5 · One training step in slow motion
#
# Autocast is one of eight things that happen in a step. Here they are, one by one, on a real step
# of a real network. Each bar is a tensor, from its smallest to its largest magnitude.

# %% id="predict-stage"
predict("autocast.stage")

# %% [markdown]
# Walk through with *Next*, or with the arrow keys on the stages. Watch stage 4 turn into stage 5.
# Then drag the scale to $2^{36}$ and walk through again; take *Another step* a few times. Last,
# compare three recipes. Their names come from apex, the first library for mixed precision in
# PyTorch. (Its mixed precision was removed in 2025.) Lesson 08 says more about them.
#
# | | weights of the model | computes in | optimizer steps |
# |---|---|---|---|
# | **O1** | FP32 | FP16 where autocast says so | these FP32 weights |
# | **O2** | FP16 | FP16 | an FP32 copy, the master weights |
# | **O3** | FP16 | FP16 | the FP16 weights |

# %% id="touch-step"
StepDebugger(replace(TASKS["segmentation_small"], batch_size=4))

# %% [markdown]
# O3's Adam ends in inf and NaN at once. It divides by the root of squared gradients, plus an
# epsilon of 1e-8. In FP16 the squares are 0, and so is the epsilon.
#
# In torch, the same step is seven lines. They can stay in the code when you want FP32, because both
# parts can be switched off.


# %% id="touch-plain"
def a_start():
    torch.manual_seed(0)
    model = nn.Linear(64, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(32, 64)


def train_plainly(steps=5):
    model, optimizer, x = a_start()
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), torch.ones(32, 1)).backward()
        optimizer.step()
    return model.weight.detach()


plain = train_plainly()
print(f"a plain FP32 loop trains {plain.numel()} weights in {plain.dtype}")


# %% id="touch-torch" tags=["claim-C52"]
def train_in_torch(enabled, steps=5):
    model, optimizer, x = a_start()
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=enabled):
            loss = F.mse_loss(model(x), torch.ones(32, 1))
        scaler.scale(loss).backward()  # enabled=False: the loss itself
        scaler.step(optimizer)  # enabled=False: optimizer.step()
        scaler.update()
    return model.weight.detach()


disabled = train_in_torch(False)
enabled = train_in_torch(True)
print("enabled=False equals a plain FP32 loop to the bit:", torch.equal(disabled, plain))
print("enabled=True does:", torch.equal(enabled, plain))

# %% [markdown]
# ## 6 · Inference: no step, no scale
#
# A trained network that only answers needs no loss scale and no master weights. There are two ways
# to FP16: `.half()` converts the weights themselves, and autocast casts them at each call. Both run
# under `torch.inference_mode()`, so that nothing is stored for a backward pass. Try both on a UNet,
# and on images that are not normalised.

# %% id="inference-models"
torch.manual_seed(0)
unet = TASKS["unet"].make_model().eval()
halved = deepcopy(unet).half()
images = TASKS["unet"].make_data().test_inputs[:8]
raw = images * 60_000  # as a scanner stores them: 16 bits


def with_autocast(x):
    with autocast(FP16):
        return unet(x)


def in_half(x):
    return halved(x.half())


# %% id="touch-inference"
ways = {"FP32": (unet, unet), ".half()": (halved, in_half), "autocast": (unet, with_autocast)}
print(f"{'':<10}{'weights, bytes':>15}{'ms':>8}{'off from FP32':>15}", end="")
print(f"{'finite':>8}{'raw images finite':>19}")
with torch.inference_mode():
    for name, (model, answer) in ways.items():
        answer(images)  # the first call also sets up
        start = perf_counter()
        y = answer(images)
        ms = 1000 * (perf_counter() - start)
        held = sum(p.numel() * p.element_size() for p in model.parameters())
        error = (y.float() - unet(images)).abs().max()
        finite = y.isfinite().float().mean()
        raw_finite = answer(raw).isfinite().float().mean()
        print(f"{name:<10}{held:>15,}{ms:>8.0f}{error:>15.1e}{finite:>8.0%}{raw_finite:>19.0%}")
    try:
        halved(images)
    except RuntimeError as error:
        print("\nhalved(images), not halved(images.half()):", str(error).split(". ")[0])

# %% id="touch-inference-published" tags=["claim-C14"]
def show_ratios(name, rows):
    ratios = sorted(row.ratio for row in rows)
    title = f"{name} ({len(ratios)})"
    print(f"{title:<46}{ratios[0]:>9.2f}{median(ratios):>9.2f}{ratios[-1]:>9.2f}")


rows = [row for row in published("inference") if row.ratio]
unets = [row for row in rows if "UNet" in row.workload or "Diffusion" in row.workload]
print(f"{'published: UNets, times as fast in FP16':<46}{'slowest':>9}{'middle':>9}{'fastest':>9}")
for card, wide in sorted({(row.card, row.reference) for row in unets}):
    same = [row for row in unets if (row.card, row.reference) == (card, wide)]
    show_ratios(f"{card}, over {wide}", same)
show_ratios("any network, one example at a time", [row for row in rows if row.batch == "1"])

# %% [markdown]
# **Half the bytes for certain, speed where the card has it.** `.half()` halves the weights;
# autocast keeps them in FP32 and halves activations. The answers differ in the third decimal digit.
# Pixels above 65504 become inf and then NaN, in both ways: normalise first. A halved model refuses
# FP32 input. On a CPU nothing gets faster. For GPUs others published these figures: in the middle
# 2.7 times the speed of FP32 on a V100, and 1.9 times that of TF32 on an A100. With one example at
# a time the gain is almost nothing: then the GPU waits for its orders.

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C14 inference in FP16 gained 50% on a UNet | half true, as others published: 2.7 times FP32 in the middle on a V100, 1.9 times TF32 on an A100, 0.84 to 3.8; the 50% is one of them | section 6 |
# | C24 an allow list runs in FP16, a deny list (softmax, loss, reductions, norms) in FP32 | half true: two more lists exist, and `mean` and batch norm keep the format of their input | section 1 |
# | C25 inside autocast a linear layer returns FP16 and mse_loss FP32 | true | section 1 |
# | C26 backward runs in the dtypes of forward, and belongs outside the block | true: inside, a backward written in Python is cast as well | section 2 |
# | C27 weights, activations and the loss are stored in FP16 | half true: under autocast only activations are | section 2 |
# | C28 einsum does not gain from FP16 | false: it is a `bmm`, and on the allow list | section 4 |
# | C29 functions off the lists must be registered before use | false: they keep the format of their input; register them only where that is wrong | section 4 |
# | C30 casting by hand defeats autocast | half true: not on listed operations; off the lists, and on weights, it does | section 4 |
# | C31 batch norm stays in FP32 | half true: inside; its input and output are FP16 | section 3 |
# | C32 the exponentials of a softmax overflow in FP16; use the official one | true: above 11.09 | section 3 |
# | C52 torch.amp has autocast and GradScaler, and enabled=False is a no-op | true: equal to the bit | section 5 |
# | C63 under autocast `cross_entropy` runs in FP32 | half true: its mean does; on a GPU torch rounds the log-probabilities of FP16 logits to FP16 | section 1 |
#
# **Where you meet this.** `torch.autocast("cuda", torch.float16)` and its lists in
# `ATen/autocast_mode.h`; `custom_fwd`, `custom_bwd`; `register_float_function` and `half_function`
# in `apex.amp` (removed from apex in 2025). Lightning's `precision="16-mixed"`; Keras'
# `mixed_float16` policy, which decides by layer; JAX's `jmp.Policy`, which leaves the decision to
# you.
