"""The W4A4 linear layer: problem, operands, oracle, packing, workspace. See docs/operator.md."""
