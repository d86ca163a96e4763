"""The command `labkit` as `python -m labkit`, which also works if scripts are not on the path."""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036  a checkout is run by whichever Python is there
        sys.exit(
            f"The lab needs Python 3.11 or newer; this is {sys.version.split()[0]} "
            f"({sys.executable})."
        )
    from labkit.cli import main

    sys.exit(main())
