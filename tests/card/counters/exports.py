"""Exports of the profiler, made by hand in the form that it documents, and a stand-in for it."""

from __future__ import annotations

import stat
from pathlib import Path

COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
           "Grid Size", "Device", "CC")  # fmt: skip
COUNTED = {  # counter -> unit, value of the first launch, value that every further launch has more
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", 12.5, 0.0),
    "gpu__time_duration.sum": ("ns", 30000.0, 1000.0),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", 40.25, 0.0),
    "sm__cycles_elapsed.avg.per_second": ("cycle/second", 1.5e9, 0.0),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", 50.0, 0.0),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": ("%", 45.0, 0.0),
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": ("%", 50.0, 0.0),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", 60.0, 0.0),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", 18.75, 0.0),
    "smsp__inst_issued.sum": ("inst", 1234567.0, 0.0),
}
ABSENT = "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_active"  # n/a on Hopper


def export(launches: int, *, times: float = 1.0, kernels: tuple[str, ...] = ("kernel_a(int, float)",)) -> str:
    """Of ``launches`` launches in turns of ``kernels``; durations are ``times`` as long."""
    header = [*COLUMNS, *COUNTED, ABSENT]
    units = [*[""] * len(COLUMNS), *(unit for unit, *_ in COUNTED.values()), ""]
    lines = [
        "==PROF== Connected to process 41 (/usr/bin/python3)",
        "a line of the program",
        _line(header),
        _line(units),
    ]
    for number in range(launches):
        who = [str(number), "41", "python3", "127.0.0.1", kernels[number % len(kernels)], "1", "7", "(384, 1, 1)",
               "(132, 1, 1)", "0", "9.0"]  # fmt: skip
        values = [
            f"{(first + number * more) * (times if unit == 'ns' else 1.0):,.2f}"
            for unit, first, more in COUNTED.values()
        ]
        lines.append(_line([*who, *values, "n/a"]))
    return "\n".join([*lines, "==PROF== Disconnected from process 41", ""])


def _line(cells: list[str]) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


def fake_ncu(folder: Path, *, says: str = "", code: int = 0, exports: tuple[str, ...] = ()) -> Path:
    """A program ``ncu``: counting, it keeps its arguments in ``arguments`` and prints ``says``; if all went well it
    leaves a report and the runner's answer, and prints the next of ``exports`` when asked for it."""
    for number, text in enumerate(exports):
        (folder / f"export{number}").write_text(text)
    path = folder / "ncu"
    path.write_text(f"""#!/bin/sh
here={folder}
case "$1" in
--version) echo "NVIDIA (R) Nsight Compute Command Line Profiler"; echo "Version 2025.3.0.0 (build 1)"; exit;;
--import) cat "$here/export$(cat "$here/count")"; expr $(cat "$here/count") + 1 > "$here/next"
  mv "$here/next" "$here/count"; exit;;
esac
printf '%s\\n' "$@" >> "$here/arguments"
[ -f "$here/count" ] || echo 0 > "$here/count"
echo "{says}" >&2
[ {code} = 0 ] || exit {code}
while [ $# -gt 0 ]; do
  case "$1" in
  --export) echo report > "$2";;
  --answer) echo '{{"calls": 5, "max_ratio": 0.5, "sm_count": 132}}' > "$2";;
  esac
  shift
done
""")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
