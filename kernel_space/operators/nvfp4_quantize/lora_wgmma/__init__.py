"""The kernel for sm_90a that also computes ``x @ lora_down``: rows of x in registers are quantized while wgmma reads them."""
