"""The layer in one launch for a middle number of rows: weights dequantized into shared memory by warps of their own."""
