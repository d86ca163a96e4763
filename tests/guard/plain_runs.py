"""Runs of the outside scripts by torch alone: unchanged, with everything in FP32, and repaired.

A healthy script ends with about the loss that it has in FP32. A faulty one fails, or ends with
another number than it does when it is repaired as `scripts/repairs.toml` says.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.guard.strangers import SCRIPTS, repaired, scripts
from tests.guard.trees import THREADS

# Regions of autocast and scalers do nothing, and the names of 16-bit types are FP32's.
IN_FP32 = """
import runpy, sys, torch, torch._dynamo
autocast, scaler = torch.autocast.__init__, torch.amp.GradScaler.__init__
def no_region(self, device_type="cpu", *args, **options):
    autocast(self, device_type, enabled=False)
def no_scaling(self, *args, **options):
    scaler(self, "cpu", enabled=False)
torch.autocast.__init__, torch.amp.GradScaler.__init__ = no_region, no_scaling
torch.nn.Module.half = torch.nn.Module.bfloat16 = torch.nn.Module.float
torch.Tensor.half = torch.Tensor.bfloat16 = torch.Tensor.float
torch.half = torch.float16 = torch.bfloat16 = torch.float32
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def show(word: str, lines: int = 2) -> int:
    """Print the last lines of each form of each script whose name contains a word.

    Returns:
        The exit status: 1 if no script has the word in its name, otherwise 0.
    """
    chosen = [script for script in scripts() if word in script.stem]
    if not chosen:
        print(f"no script has {word!r} in its name", file=sys.stderr)
        return 1
    for script in chosen:
        # The docstring of a script begins with "Healthy:" or "Faulty:".
        kind = script.read_text(encoding="utf-8").partition(":")[0].strip('"').lower()
        print(f"{script.stem} ({kind})", flush=True)
        print(f"  as it is  {ending([str(script)], lines)}", flush=True)
        print(f"  in FP32   {ending(['-c', IN_FP32, str(script)], lines)}", flush=True)
        changed = repaired(script)
        if changed is not None:
            with TemporaryDirectory() as folder:
                edited = Path(folder) / script.name
                edited.write_text(changed, encoding="utf-8")
                print(f"  repaired  {ending([str(edited)], lines)}", flush=True)
    return 0


def ending(words: list[str], lines: int) -> str:
    """Run Python, and return its status and the last lines of its output or error in one line."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **dict.fromkeys(THREADS, "1")},
        cwd=SCRIPTS,
    )
    printed = done.stderr if done.returncode else done.stdout
    return f"status {done.returncode}: " + " | ".join(printed.strip().splitlines()[-lines:])


if __name__ == "__main__":
    sys.exit(show(sys.argv[1]))
