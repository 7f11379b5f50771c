"""A linear layer on FP8 activations: a row of x and a row of the layer's weights each have one scale."""
