"""The drawing of the bits of a number, field by field: for every widget that shows them."""
