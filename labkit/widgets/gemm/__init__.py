"""How fast do matrix products run in each format? Figures of recorded measurements."""
