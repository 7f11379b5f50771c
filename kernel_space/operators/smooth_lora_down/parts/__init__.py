"""What the kernels of this operator share: the order of a row, and what they do otherwise than ``nvfp4_quantize``."""
