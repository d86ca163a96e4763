"""The drawing of a histogram of exponents before the windows of a format: for every widget that shows one."""
