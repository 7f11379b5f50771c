"""The kernel whose activations are expanded by a first one."""
