"""PTX text and tensor maps that probes are made of."""
