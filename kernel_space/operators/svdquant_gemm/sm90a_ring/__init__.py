"""The kernel with operands through rings of shared memory."""
