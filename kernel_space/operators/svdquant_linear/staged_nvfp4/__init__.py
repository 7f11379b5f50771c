"""The kernel ``staged_nvfp4``: a layer on up to a few hundred rows of NVFP4 activations in one launch."""
