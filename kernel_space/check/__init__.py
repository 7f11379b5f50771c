"""Is a candidate right? Its PTX in the machine against the float64 oracle."""
