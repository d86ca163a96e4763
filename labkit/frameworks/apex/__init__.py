"""apex.amp for scripts that were written for it: `from labkit.frameworks.apex import amp`.

apex removed its own engine in 2025. `amp` has the calls, `models` the levels O0 to O3 and what they
do to a model, `casts` the casts of torch's functions under O1, `optimizers` the scales and steps.
"""

from labkit.frameworks.apex import amp

__all__ = ["amp"]


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"labkit has apex's amp, and no {name}. torch has the rest: "
        "torch.nn.parallel.DistributedDataParallel, torch.nn.SyncBatchNorm, "
        "torch.optim.Adam(fused=True), torch.nn.LayerNorm."
    )
