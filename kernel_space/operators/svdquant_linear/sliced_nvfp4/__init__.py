"""The kernel ``sliced_nvfp4``: a layer on up to 16 rows of NVFP4 activations in one launch, for sm_90a."""
