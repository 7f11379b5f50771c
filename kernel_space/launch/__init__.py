"""An exported object in this process: loaded, captured, asked for its occupancy."""
