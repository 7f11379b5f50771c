"""Many rows: weights and the low-rank branch as one FP8 matrix, made anew in each launch."""
