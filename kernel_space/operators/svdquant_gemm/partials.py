"""Layout of split-K's part of the workspace, for the host and for kernels: counters, then fp32 partial sums.

Apart from ``workspace.py``, which kernels do not import: what else a workspace holds is not what their code depends on.
"""

from __future__ import annotations

COUNTER_BYTES = 4  # one int32 per output tile
PARTIALS_ALIGN = 256
PARTIAL_BYTES = 4
