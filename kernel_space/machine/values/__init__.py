"""Numbers and their formats, lanes, faults, clocks: what everything else stands on."""
