"""The design of ``sm90a_small_m`` with ``mma.sync``: no rings between warps."""
