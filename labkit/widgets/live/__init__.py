"""How does a training look while it runs? Beside FP32, with the scale in the learner's hand."""
