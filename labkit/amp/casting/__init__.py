"""Which operation runs in which dtype? The lists, the region that obeys them, and a ledger of what it did."""
