"""Start of a Python process with a simulated card: it waits for torch to be imported.

This folder stands first on PYTHONPATH, see `tests.gpu.simulated.environment`. A process that never
imports torch pays for this file alone. A `sitecustomize` that the machine has anyway runs as it
would have.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec, spec_from_file_location


class BeforeTorch:
    """A finder that finds nothing: it is told what is about to be imported, and
    prepares for torch.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch" and "simulated_cuda" not in sys.modules:
            # before torch's own libraries: whoever asks first for CUDA's hooks decides which ones
            # there are
            library = os.environ["LABKIT_SIMULATED_GPU_LIBRARY"]
            loader = ExtensionFileLoader("simulated_cuda", library)
            module = module_from_spec(
                spec_from_file_location("simulated_cuda", library, loader=loader)
            )
            loader.exec_module(module)
            sys.modules["simulated_cuda"] = module
        elif name == "torch.cuda":
            from tests.gpu.simulated.runtime import install

            install(os.environ["LABKIT_SIMULATED_GPU"])


def run_the_machines_own():
    here = os.path.dirname(os.path.realpath(__file__))
    elsewhere = [folder for folder in sys.path if os.path.realpath(folder) != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if "LABKIT_SIMULATED_GPU" in os.environ:
    os.environ["TORCH_DISABLE_NATIVE_JIT"] = (
        "1"  # kernels in Triton that torch puts before its own, for the card has none
    )
    sys.meta_path.insert(0, BeforeTorch)
run_the_machines_own()
