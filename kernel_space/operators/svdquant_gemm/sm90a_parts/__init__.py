"""Config, layouts and dequantizing that the designs for sm_90a share."""
