"""What oracles and checks share: NVFP4, blocked scale factors, required tensors, the comparison of an output."""
