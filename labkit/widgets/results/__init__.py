"""Figures and tables of recorded and published results."""
