"""`python -m labkit` is the command `labkit`, for where scripts are not on the path."""

import sys

from labkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
