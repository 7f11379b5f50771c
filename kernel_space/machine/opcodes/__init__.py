"""One opcode, one short function, one table."""
