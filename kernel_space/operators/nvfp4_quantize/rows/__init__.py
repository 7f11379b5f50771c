"""The plain kernel: some threads share a row, every thread converts a vector of it at a time."""
