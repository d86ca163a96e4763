"""Autocast: the lists of operations, the region that casts by them, and a ledger of its casts."""
