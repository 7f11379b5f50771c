"""What the kernels of this operator share: the numbers of a thread, and instructions the DSL has no operation for."""
