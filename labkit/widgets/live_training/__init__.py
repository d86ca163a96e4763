"""The live training, and what it shares with the workbench."""
