"""Start of a Python process with a simulated card: it waits for torch to be imported.

This folder is first on PYTHONPATH, see `tests.gpu.simulated.environment`. A process that never
imports torch loads this file only. A `sitecustomize` of the machine, which this one hides, is run
at the end.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec, spec_from_file_location


class BeforeTorch:
    """A finder that finds nothing.

    It loads the card's library when torch is about to be imported, and installs the card when
    torch.cuda is.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch" and "simulated_cuda" not in sys.modules:
            # Before torch's own libraries, because the first request for CUDA's hooks fixes them.
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


def run_hidden_sitecustomize():
    here = os.path.dirname(os.path.realpath(__file__))
    elsewhere = [folder for folder in sys.path if os.path.realpath(folder) != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if "LABKIT_SIMULATED_GPU" in os.environ:
    # The card has no Triton, whose kernels torch would otherwise prefer to its own.
    os.environ["TORCH_DISABLE_NATIVE_JIT"] = "1"
    sys.meta_path.insert(0, BeforeTorch)
run_hidden_sitecustomize()
