"""labkit: see mixed-precision training happen, down to the bit.

Nothing is re-exported here, so that `import labkit.formats` stays numpy-only. Import from the
layers, in the order of the course: `labkit.formats`, `labkit.machine`, `labkit.gemm`,
`labkit.instrument`, `labkit.amp`, `labkit.train`, `labkit.frameworks`, `labkit.faults`,
`labkit.clinic`, `labkit.widgets`, and `labkit.grading` beside them.
"""

__version__ = "0.3.0"
