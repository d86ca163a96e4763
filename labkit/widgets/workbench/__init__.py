"""The workbench: every knob of a recipe on a training that runs."""
