"""How does fastai train in FP16? Its loop, its callbacks and their names, over the lab's engine, on a CPU too.

`from fastai.basics import *` becomes `from labkit.frameworks.fastai.basics import *`, and so do `callback.fp16` and
`test_utils`. It is the loop and mixed precision, not fastai: no vision, no text, no transforms.
"""
