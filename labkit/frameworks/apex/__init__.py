"""apex.amp for scripts that were written for it: `from labkit.frameworks.apex import amp`.

apex took its own engine out in 2025; this one can be read. `amp` holds the calls, `models` what O0
to O3 mean and do to a model, `casts` what O1 does to torch's functions, `optimizers` the scales and
steps.
"""

from labkit.frameworks.apex import amp

__all__ = ["amp"]


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"labkit has apex's amp, and no {name}. torch has the rest: "
        "torch.nn.parallel.DistributedDataParallel, torch.nn.SyncBatchNorm, "
        "torch.optim.Adam(fused=True), torch.nn.LayerNorm."
    )
