"""A card's performance counters: what Nsight Compute (``ncu``) is asked for, how it is run, what its export says."""
