"""The oracle of a watch: everything is kept, and counted in plain Python and numpy. It shares no code with labkit.

Histograms are {exponent: count}, with "zero" and "bad" for zeros and for inf and NaN.
"""

from collections import Counter, defaultdict

import numpy as np
import torch


def numbers(tensor):
    """All stored numbers of a tensor, as float64 in numpy."""
    tensor = tensor.detach()
    tensor = tensor.coalesce().values() if tensor.is_sparse else tensor
    return tensor.to(torch.float64).numpy().ravel()


def counted(values):
    """The exponents of some numbers: numpy.frexp says 0.5 <= |x| / 2^e < 1."""
    finite = values[np.isfinite(values)]
    _, exponents = np.frexp(np.abs(finite[finite != 0]))
    return Counter((exponents - 1).tolist()) + Counter(zero=int((finite == 0).sum()), bad=len(values) - len(finite))


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    return [t for part in output for t in tensors(part)] if isinstance(output, tuple | list) else []


def brute_force(model, step, scale):  # one page, to be read at once
    """Run `step(model)`, a backward pass and an optimizer's step, and count all that can be counted."""
    seen, handles, running = defaultdict(lambda: defaultdict(Counter)), [], []
    arrived = seen["activation gradients"]

    def after(name):
        def hook(_module, _inputs, output):
            for tensor in tensors(output):
                if not running:  # else it is a checkpoint that is run again
                    seen["activations"][name].update(counted(numbers(tensor)))
                if tensor.requires_grad:
                    tensor.register_hook(lambda g: arrived[name].update(counted(numbers(g) / scale)))

        return hook

    for name, module in model.named_modules():
        if not list(module.children()):
            handles.append(module.register_forward_hook(after(name)))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = step(model, running)
    for name, p in model.named_parameters():
        seen["weights"][name] = counted(numbers(before[name]))
        if p.grad is not None:
            seen["weight gradients"][name] = counted(numbers(p.grad))
        if any(p is q for group in optimizer.param_groups for q in group["params"]):
            seen["updates"][name] = counted(numbers(p.detach().float() - before[name].float()))
    [handle.remove() for handle in handles]
    return seen
