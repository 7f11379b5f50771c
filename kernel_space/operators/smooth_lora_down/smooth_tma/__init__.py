"""``lora_tma`` of ``nvfp4_quantize``, which smooths rows of x and puts them in order where that one quantizes."""
