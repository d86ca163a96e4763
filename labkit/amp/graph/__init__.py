"""Graphs of networks whose casts are decided once: a trace, passes over it, and a graph to run."""
