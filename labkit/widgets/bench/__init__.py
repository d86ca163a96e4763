"""What do the workbench and the live training share? Runs beside FP32, knobs, words and pictures."""
