"""How fast are products here: by format and size, for one row and many, fused and by hand?

Run by hand: .venv/bin/python tests/benchmarks/bench_gemm.py [SWEEP ...] [--threads 2] [--device cuda]

Times the sweeps of `labkit.bench` (all cases of one take turns, so their ratios hold on a busy machine), prints a
line for each case and a sentence for each sweep. Nothing is kept: `labkit gpu` records.
"""

import argparse

from labkit.bench import device_report, measure, roofline, sweeps
from labkit.widgets import sweep_sentence


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("sweeps", nargs="*", default=["ceilings", "size", "bandwidth"], metavar="SWEEP")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--device", default=None, choices=["cpu", "cuda"])
    chosen = arguments.parse_args()
    report = device_report(chosen.device)
    unknown = set(chosen.sweeps) - set(sweeps(report))
    if unknown:
        arguments.error(f"there is no sweep {', '.join(sorted(unknown))}; there are {', '.join(sweeps(report))}")
    print(report)
    roof = roofline(measure("ceilings", report.kind, threads=chosen.threads).runs)
    for name in chosen.sweeps:
        record = measure(name, report.kind, threads=chosen.threads)
        print(f"\n{name}: {record.question} ({record.how})")
        for run in record.runs:
            share = f"{roof.of_ceiling(run):4.0%}" if run.case.format in roof.peaks or not run.case.flops else ""
            print(
                f"  {run.case.label:<62} {run.tflops:8.4f} TFLOP/s {run.gbps:7.1f} GB/s  {share:>4} of the ceiling  "
                f"{run.error:7.2f} ulp"
            )
        for line in record.left_out:
            print(f"  left out: {line}")
        print(sweep_sentence(record))


if __name__ == "__main__":
    main()
