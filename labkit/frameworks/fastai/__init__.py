"""fastai's training loop and mixed-precision callbacks on the lab's engine, on a CPU too.

`from fastai.basics import *` becomes `from labkit.frameworks.fastai.basics import *`;
`callback.fp16` and `test_utils` are replaced in the same way. Only the loop and mixed precision are
here, without vision, text or transforms.
"""
