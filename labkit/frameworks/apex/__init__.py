"""How does a script that was written for apex run? Say `from labkit.frameworks.apex import amp`; that is all.

apex took its own engine out in 2025; this one can be read. `amp` holds the calls, `properties` what O0 to O3 mean,
`casts` what O1 does to torch's functions, `models` what O2 and O3 do to a model, `optimizers` whose gradients a step
takes, `scalers` where the loss scales stand.
"""

from labkit.frameworks.apex import amp

__all__ = ["amp"]


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"labkit has apex's amp, and no {name}. torch has the rest: torch.nn.parallel.DistributedDataParallel, "
        "torch.nn.SyncBatchNorm, torch.optim.Adam(fused=True), torch.nn.LayerNorm."
    )
