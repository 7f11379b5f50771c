"""The kernel ``whole_nvfp4``: a layer on few rows of NVFP4 activations in one launch, for sm_90a."""
