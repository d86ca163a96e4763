"""What every test shares: one thread, and a first line that says so.

The models here are so small that handing work to a second thread costs more than the work; on a shared machine it can
be tens of times slower. The variables are set before anything imports torch, and kernels started by tests inherit them.
"""

import os

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

for variable in THREAD_VARIABLES:
    os.environ.setdefault(variable, "1")


def pytest_report_header() -> str:
    return "threads: " + ", ".join(f"{variable}={os.environ[variable]}" for variable in THREAD_VARIABLES)
