"""The kernel for sm_90a that also computes ``x @ lora_down``: wgmma reads words of x while they are quantized."""
