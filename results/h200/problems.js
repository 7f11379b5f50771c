window.problems = [
{
"page": "nvfp4_quantize/4352x3072x128",
"name": "nvfp4_quantize 4352,3072,128"
},
{
"page": "nvfp4_quantize/1x3840x0",
"name": "nvfp4_quantize 1,3840,0"
},
{
"page": "nvfp4_quantize/1x3840x0-fp32-fp32",
"name": "nvfp4_quantize 1,3840,0"
},
{
"page": "nvfp4_quantize/64x3840x0",
"name": "nvfp4_quantize 64,3840,0"
},
{
"page": "nvfp4_quantize/256x3840x0",
"name": "nvfp4_quantize 256,3840,0"
},
{
"page": "nvfp4_quantize/256x3840x0-fp32-fp32",
"name": "nvfp4_quantize 256,3840,0"
},
{
"page": "nvfp4_quantize/1024x3840x0",
"name": "nvfp4_quantize 1024,3840,0"
},
{
"page": "nvfp4_quantize/4352x3840x0",
"name": "nvfp4_quantize 4352,3840,0"
},
{
"page": "nvfp4_quantize/4352x3840x0-fp32-fp32",
"name": "nvfp4_quantize 4352,3840,0"
},
{
"page": "nvfp4_quantize/1x3840x128",
"name": "nvfp4_quantize 1,3840,128"
},
{
"page": "nvfp4_quantize/16x3840x128",
"name": "nvfp4_quantize 16,3840,128"
},
{
"page": "nvfp4_quantize/64x3840x128",
"name": "nvfp4_quantize 64,3840,128"
},
{
"page": "nvfp4_quantize/128x3840x128",
"name": "nvfp4_quantize 128,3840,128"
},
{
"page": "nvfp4_quantize/256x3840x128",
"name": "nvfp4_quantize 256,3840,128"
},
{
"page": "nvfp4_quantize/1024x3840x128",
"name": "nvfp4_quantize 1024,3840,128"
},
{
"page": "nvfp4_quantize/4352x3840x128",
"name": "nvfp4_quantize 4352,3840,128"
},
{
"page": "nvfp4_quantize/4352x12288x128",
"name": "nvfp4_quantize 4352,12288,128"
},
{
"page": "smooth_lora_down/4352x3072x128",
"name": "smooth_lora_down 4352,3072,128"
},
{
"page": "smooth_lora_down/1x3840x128",
"name": "smooth_lora_down 1,3840,128"
},
{
"page": "smooth_lora_down/16x3840x128",
"name": "smooth_lora_down 16,3840,128"
},
{
"page": "smooth_lora_down/64x3840x128",
"name": "smooth_lora_down 64,3840,128"
},
{
"page": "smooth_lora_down/128x3840x128",
"name": "smooth_lora_down 128,3840,128"
},
{
"page": "smooth_lora_down/256x3840x128",
"name": "smooth_lora_down 256,3840,128"
},
{
"page": "smooth_lora_down/1024x3840x128",
"name": "smooth_lora_down 1024,3840,128"
},
{
"page": "smooth_lora_down/4352x3840x128",
"name": "smooth_lora_down 4352,3840,128"
},
{
"page": "smooth_lora_down/4352x12288x128",
"name": "smooth_lora_down 4352,12288,128"
},
{
"page": "svdquant_gemm/128x2048x7168x0",
"name": "svdquant_gemm 128,2048,7168,0"
},
{
"page": "svdquant_gemm/256x3840x3072x0",
"name": "svdquant_gemm 256,3840,3072,0"
},
{
"page": "svdquant_gemm/4352x3840x3072x0",
"name": "svdquant_gemm 4352,3840,3072,0"
},
{
"page": "svdquant_gemm/17x3840x3072x64",
"name": "svdquant_gemm 17,3840,3072,64"
},
{
"page": "svdquant_gemm/1x3840x3072x128",
"name": "svdquant_gemm 1,3840,3072,128"
},
{
"page": "svdquant_gemm/16x3840x3072x128",
"name": "svdquant_gemm 16,3840,3072,128"
},
{
"page": "svdquant_gemm/64x3840x3072x128",
"name": "svdquant_gemm 64,3840,3072,128"
},
{
"page": "svdquant_gemm/128x3840x3072x128",
"name": "svdquant_gemm 128,3840,3072,128"
},
{
"page": "svdquant_gemm/256x3840x3072x128",
"name": "svdquant_gemm 256,3840,3072,128"
},
{
"page": "svdquant_gemm/1024x3840x3072x128",
"name": "svdquant_gemm 1024,3840,3072,128"
},
{
"page": "svdquant_gemm/4352x3840x3072x128",
"name": "svdquant_gemm 4352,3840,3072,128"
},
{
"page": "svdquant_gemm/16x3840x3072x256",
"name": "svdquant_gemm 16,3840,3072,256"
},
{
"page": "svdquant_gemm/64x3840x3072x256",
"name": "svdquant_gemm 64,3840,3072,256"
},
{
"page": "svdquant_gemm/256x3840x3072x256",
"name": "svdquant_gemm 256,3840,3072,256"
},
{
"page": "svdquant_gemm/1024x3840x3072x256",
"name": "svdquant_gemm 1024,3840,3072,256"
},
{
"page": "svdquant_gemm/4352x3840x3072x256",
"name": "svdquant_gemm 4352,3840,3072,256"
},
{
"page": "svdquant_gemm/4352x3840x15360x0",
"name": "svdquant_gemm 4352,3840,15360,0"
},
{
"page": "svdquant_gemm/4352x3840x15360x128",
"name": "svdquant_gemm 4352,3840,15360,128"
},
{
"page": "svdquant_gemm/128x7168x4096x0",
"name": "svdquant_gemm 128,7168,4096,0"
},
{
"page": "svdquant_gemm/4352x10240x3072x0",
"name": "svdquant_gemm 4352,10240,3072,0"
},
{
"page": "svdquant_gemm/4352x10240x3072x32",
"name": "svdquant_gemm 4352,10240,3072,32"
},
{
"page": "svdquant_gemm/4352x15360x3840x0",
"name": "svdquant_gemm 4352,15360,3840,0"
},
{
"page": "svdquant_gemm/4352x15360x3840x128",
"name": "svdquant_gemm 4352,15360,3840,128"
},
{
"page": "svdquant_gemm/128x16384x7168x0",
"name": "svdquant_gemm 128,16384,7168,0"
},
{
"page": "svdquant_gemm_16bit/4352x3072x3072x128",
"name": "svdquant_gemm_16bit 4352,3072,3072,128"
},
{
"page": "svdquant_gemm_16bit/16x3072x12288x128-bf16",
"name": "svdquant_gemm_16bit 16,3072,12288,128"
},
{
"page": "svdquant_gemm_16bit/16x3072x12288x128",
"name": "svdquant_gemm_16bit 16,3072,12288,128"
},
{
"page": "svdquant_gemm_16bit/4352x3072x12288x128-bf16",
"name": "svdquant_gemm_16bit 4352,3072,12288,128"
},
{
"page": "svdquant_gemm_16bit/4352x3072x12288x128",
"name": "svdquant_gemm_16bit 4352,3072,12288,128"
},
{
"page": "svdquant_gemm_16bit/1x3840x3072x128-bf16",
"name": "svdquant_gemm_16bit 1,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/1x3840x3072x128",
"name": "svdquant_gemm_16bit 1,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/16x3840x3072x128-bf16",
"name": "svdquant_gemm_16bit 16,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/16x3840x3072x128",
"name": "svdquant_gemm_16bit 16,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/64x3840x3072x128-bf16",
"name": "svdquant_gemm_16bit 64,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/64x3840x3072x128",
"name": "svdquant_gemm_16bit 64,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/128x3840x3072x128-bf16",
"name": "svdquant_gemm_16bit 128,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/128x3840x3072x128",
"name": "svdquant_gemm_16bit 128,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/256x3840x3072x128-bf16",
"name": "svdquant_gemm_16bit 256,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/256x3840x3072x128",
"name": "svdquant_gemm_16bit 256,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/512x3840x3072x128-bf16",
"name": "svdquant_gemm_16bit 512,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/1024x3840x3072x128-bf16",
"name": "svdquant_gemm_16bit 1024,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/1024x3840x3072x128",
"name": "svdquant_gemm_16bit 1024,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/4352x3840x3072x128-bf16",
"name": "svdquant_gemm_16bit 4352,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/4352x3840x3072x128",
"name": "svdquant_gemm_16bit 4352,3840,3072,128"
},
{
"page": "svdquant_gemm_16bit/16x12288x3072x128-bf16",
"name": "svdquant_gemm_16bit 16,12288,3072,128"
},
{
"page": "svdquant_gemm_16bit/4352x12288x3072x128-bf16",
"name": "svdquant_gemm_16bit 4352,12288,3072,128"
},
{
"page": "svdquant_gemm_16bit/4352x12288x3072x128",
"name": "svdquant_gemm_16bit 4352,12288,3072,128"
},
{
"page": "svdquant_linear/1x3072x3072x128-bf16",
"name": "svdquant_linear 1,3072,3072,128"
},
{
"page": "svdquant_linear/1x3072x3072x128",
"name": "svdquant_linear 1,3072,3072,128"
},
{
"page": "svdquant_linear/8x3072x3072x128-bf16",
"name": "svdquant_linear 8,3072,3072,128"
},
{
"page": "svdquant_linear/16x3072x3072x128-bf16",
"name": "svdquant_linear 16,3072,3072,128"
},
{
"page": "svdquant_linear/16x3072x3072x128",
"name": "svdquant_linear 16,3072,3072,128"
},
{
"page": "svdquant_linear/64x3072x3072x128-bf16",
"name": "svdquant_linear 64,3072,3072,128"
},
{
"page": "svdquant_linear/64x3072x3072x128",
"name": "svdquant_linear 64,3072,3072,128"
},
{
"page": "svdquant_linear/128x3072x3072x128-bf16",
"name": "svdquant_linear 128,3072,3072,128"
},
{
"page": "svdquant_linear/128x3072x3072x128",
"name": "svdquant_linear 128,3072,3072,128"
},
{
"page": "svdquant_linear/256x3072x3072x128-bf16",
"name": "svdquant_linear 256,3072,3072,128"
},
{
"page": "svdquant_linear/256x3072x3072x128",
"name": "svdquant_linear 256,3072,3072,128"
},
{
"page": "svdquant_linear/384x3072x3072x128-bf16",
"name": "svdquant_linear 384,3072,3072,128"
},
{
"page": "svdquant_linear/512x3072x3072x128-bf16",
"name": "svdquant_linear 512,3072,3072,128"
},
{
"page": "svdquant_linear/1024x3072x3072x128-bf16",
"name": "svdquant_linear 1024,3072,3072,128"
},
{
"page": "svdquant_linear/1x3072x9216x128-bf16",
"name": "svdquant_linear 1,3072,9216,128"
},
{
"page": "svdquant_linear/8x3072x9216x128-bf16",
"name": "svdquant_linear 8,3072,9216,128"
},
{
"page": "svdquant_linear/16x3072x9216x128-bf16",
"name": "svdquant_linear 16,3072,9216,128"
},
{
"page": "svdquant_linear/64x3072x9216x128-bf16",
"name": "svdquant_linear 64,3072,9216,128"
},
{
"page": "svdquant_linear/128x3072x9216x128-bf16",
"name": "svdquant_linear 128,3072,9216,128"
},
{
"page": "svdquant_linear/256x3072x9216x128-bf16",
"name": "svdquant_linear 256,3072,9216,128"
},
{
"page": "svdquant_linear/1024x3072x9216x128-bf16",
"name": "svdquant_linear 1024,3072,9216,128"
},
{
"page": "svdquant_linear/1x3072x12288x128-bf16",
"name": "svdquant_linear 1,3072,12288,128"
},
{
"page": "svdquant_linear/1x3072x12288x128",
"name": "svdquant_linear 1,3072,12288,128"
},
{
"page": "svdquant_linear/8x3072x12288x128-bf16",
"name": "svdquant_linear 8,3072,12288,128"
},
{
"page": "svdquant_linear/16x3072x12288x128-bf16",
"name": "svdquant_linear 16,3072,12288,128"
},
{
"page": "svdquant_linear/16x3072x12288x128",
"name": "svdquant_linear 16,3072,12288,128"
},
{
"page": "svdquant_linear/64x3072x12288x128-bf16",
"name": "svdquant_linear 64,3072,12288,128"
},
{
"page": "svdquant_linear/64x3072x12288x128",
"name": "svdquant_linear 64,3072,12288,128"
},
{
"page": "svdquant_linear/128x3072x12288x128-bf16",
"name": "svdquant_linear 128,3072,12288,128"
},
{
"page": "svdquant_linear/128x3072x12288x128",
"name": "svdquant_linear 128,3072,12288,128"
},
{
"page": "svdquant_linear/256x3072x12288x128-bf16",
"name": "svdquant_linear 256,3072,12288,128"
},
{
"page": "svdquant_linear/4352x3072x12288x128-bf16",
"name": "svdquant_linear 4352,3072,12288,128"
},
{
"page": "svdquant_linear/1x3840x3072x128-bf16",
"name": "svdquant_linear 1,3840,3072,128"
},
{
"page": "svdquant_linear/1x3840x3072x128",
"name": "svdquant_linear 1,3840,3072,128"
},
{
"page": "svdquant_linear/8x3840x3072x128-bf16",
"name": "svdquant_linear 8,3840,3072,128"
},
{
"page": "svdquant_linear/16x3840x3072x128-bf16",
"name": "svdquant_linear 16,3840,3072,128"
},
{
"page": "svdquant_linear/16x3840x3072x128",
"name": "svdquant_linear 16,3840,3072,128"
},
{
"page": "svdquant_linear/64x3840x3072x128-bf16",
"name": "svdquant_linear 64,3840,3072,128"
},
{
"page": "svdquant_linear/64x3840x3072x128",
"name": "svdquant_linear 64,3840,3072,128"
},
{
"page": "svdquant_linear/128x3840x3072x128-bf16",
"name": "svdquant_linear 128,3840,3072,128"
},
{
"page": "svdquant_linear/128x3840x3072x128",
"name": "svdquant_linear 128,3840,3072,128"
},
{
"page": "svdquant_linear/256x3840x3072x128-bf16",
"name": "svdquant_linear 256,3840,3072,128"
},
{
"page": "svdquant_linear/256x3840x3072x128",
"name": "svdquant_linear 256,3840,3072,128"
},
{
"page": "svdquant_linear/384x3840x3072x128-bf16",
"name": "svdquant_linear 384,3840,3072,128"
},
{
"page": "svdquant_linear/512x3840x3072x128-bf16",
"name": "svdquant_linear 512,3840,3072,128"
},
{
"page": "svdquant_linear/1024x3840x3072x128-bf16",
"name": "svdquant_linear 1024,3840,3072,128"
},
{
"page": "svdquant_linear/4352x3840x3072x128-bf16",
"name": "svdquant_linear 4352,3840,3072,128"
},
{
"page": "svdquant_linear/1x12288x3072x128-bf16",
"name": "svdquant_linear 1,12288,3072,128"
},
{
"page": "svdquant_linear/1x12288x3072x128",
"name": "svdquant_linear 1,12288,3072,128"
},
{
"page": "svdquant_linear/8x12288x3072x128-bf16",
"name": "svdquant_linear 8,12288,3072,128"
},
{
"page": "svdquant_linear/16x12288x3072x128-bf16",
"name": "svdquant_linear 16,12288,3072,128"
},
{
"page": "svdquant_linear/16x12288x3072x128",
"name": "svdquant_linear 16,12288,3072,128"
},
{
"page": "svdquant_linear/64x12288x3072x128-bf16",
"name": "svdquant_linear 64,12288,3072,128"
},
{
"page": "svdquant_linear/64x12288x3072x128",
"name": "svdquant_linear 64,12288,3072,128"
},
{
"page": "svdquant_linear/128x12288x3072x128-bf16",
"name": "svdquant_linear 128,12288,3072,128"
},
{
"page": "svdquant_linear/128x12288x3072x128",
"name": "svdquant_linear 128,12288,3072,128"
},
{
"page": "svdquant_linear/256x12288x3072x128-bf16",
"name": "svdquant_linear 256,12288,3072,128"
},
{
"page": "svdquant_linear/1024x12288x3072x128-bf16",
"name": "svdquant_linear 1024,12288,3072,128"
},
{
"page": "svdquant_linear/4352x12288x3072x128-bf16",
"name": "svdquant_linear 4352,12288,3072,128"
},
{
"page": "svdquant_linear/1x15360x3840x128-bf16",
"name": "svdquant_linear 1,15360,3840,128"
},
{
"page": "svdquant_linear/8x15360x3840x128-bf16",
"name": "svdquant_linear 8,15360,3840,128"
},
{
"page": "svdquant_linear/16x15360x3840x128-bf16",
"name": "svdquant_linear 16,15360,3840,128"
},
{
"page": "svdquant_linear/64x15360x3840x128-bf16",
"name": "svdquant_linear 64,15360,3840,128"
},
{
"page": "svdquant_linear/128x15360x3840x128-bf16",
"name": "svdquant_linear 128,15360,3840,128"
},
{
"page": "svdquant_linear/256x15360x3840x128-bf16",
"name": "svdquant_linear 256,15360,3840,128"
},
{
"page": "svdquant_linear/1024x15360x3840x128-bf16",
"name": "svdquant_linear 1024,15360,3840,128"
},
{
"page": "svdquant_linear_16bit/1x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 1,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/1x3072x3072x128",
"name": "svdquant_linear_16bit 1,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/8x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 8,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/16x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 16,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/16x3072x3072x128",
"name": "svdquant_linear_16bit 16,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/32x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 32,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/64x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 64,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/64x3072x3072x128",
"name": "svdquant_linear_16bit 64,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/128x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 128,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/128x3072x3072x128",
"name": "svdquant_linear_16bit 128,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/192x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 192,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/256x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 256,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/256x3072x3072x128",
"name": "svdquant_linear_16bit 256,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/384x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 384,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/512x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 512,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/1024x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 1024,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/4352x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 4352,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/1x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 1,3072,9216,128"
},
{
"page": "svdquant_linear_16bit/8x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 8,3072,9216,128"
},
{
"page": "svdquant_linear_16bit/16x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 16,3072,9216,128"
},
{
"page": "svdquant_linear_16bit/64x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 64,3072,9216,128"
},
{
"page": "svdquant_linear_16bit/128x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 128,3072,9216,128"
},
{
"page": "svdquant_linear_16bit/256x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 256,3072,9216,128"
},
{
"page": "svdquant_linear_16bit/1024x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 1024,3072,9216,128"
},
{
"page": "svdquant_linear_16bit/4352x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 4352,3072,9216,128"
},
{
"page": "svdquant_linear_16bit/1x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 1,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/8x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 8,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/16x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 16,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/64x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 64,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/64x3072x12288x128",
"name": "svdquant_linear_16bit 64,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/128x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 128,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/128x3072x12288x128",
"name": "svdquant_linear_16bit 128,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/256x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 256,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/256x3072x12288x128",
"name": "svdquant_linear_16bit 256,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/512x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 512,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/1024x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 1024,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/4352x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 4352,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/16x3840x3072x32-bf16",
"name": "svdquant_linear_16bit 16,3840,3072,32"
},
{
"page": "svdquant_linear_16bit/1x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 1,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/1x3840x3072x128",
"name": "svdquant_linear_16bit 1,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/8x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 8,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/16x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 16,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/16x3840x3072x128",
"name": "svdquant_linear_16bit 16,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/32x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 32,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/64x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 64,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/64x3840x3072x128",
"name": "svdquant_linear_16bit 64,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/128x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 128,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/128x3840x3072x128",
"name": "svdquant_linear_16bit 128,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/192x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 192,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/256x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 256,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/256x3840x3072x128",
"name": "svdquant_linear_16bit 256,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/384x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 384,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/512x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 512,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/1024x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 1024,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/4352x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 4352,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/1x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 1,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/8x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 8,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/16x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 16,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/64x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 64,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/64x12288x3072x128",
"name": "svdquant_linear_16bit 64,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/128x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 128,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/128x12288x3072x128",
"name": "svdquant_linear_16bit 128,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/256x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 256,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/256x12288x3072x128",
"name": "svdquant_linear_16bit 256,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/384x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 384,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/512x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 512,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/1024x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 1024,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/4352x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 4352,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/1x15360x3840x128-bf16",
"name": "svdquant_linear_16bit 1,15360,3840,128"
},
{
"page": "svdquant_linear_16bit/8x15360x3840x128-bf16",
"name": "svdquant_linear_16bit 8,15360,3840,128"
},
{
"page": "svdquant_linear_16bit/16x15360x3840x128-bf16",
"name": "svdquant_linear_16bit 16,15360,3840,128"
},
{
"page": "svdquant_linear_16bit/64x15360x3840x128-bf16",
"name": "svdquant_linear_16bit 64,15360,3840,128"
},
{
"page": "svdquant_linear_16bit/128x15360x3840x128-bf16",
"name": "svdquant_linear_16bit 128,15360,3840,128"
},
{
"page": "svdquant_linear_16bit/256x15360x3840x128-bf16",
"name": "svdquant_linear_16bit 256,15360,3840,128"
},
{
"page": "svdquant_linear_16bit/1024x15360x3840x128-bf16",
"name": "svdquant_linear_16bit 1024,15360,3840,128"
},
{
"page": "svdquant_linear_16bit/4352x15360x3840x128-bf16",
"name": "svdquant_linear_16bit 4352,15360,3840,128"
},
{
"page": "svdquant_linear_fp8/512x3072x3072x128-bf16",
"name": "svdquant_linear_fp8 512,3072,3072,128"
},
{
"page": "svdquant_linear_fp8/1024x3072x3072x128-bf16",
"name": "svdquant_linear_fp8 1024,3072,3072,128"
},
{
"page": "svdquant_linear_fp8/2048x3072x3072x128-bf16",
"name": "svdquant_linear_fp8 2048,3072,3072,128"
},
{
"page": "svdquant_linear_fp8/4096x3072x3072x128-bf16",
"name": "svdquant_linear_fp8 4096,3072,3072,128"
},
{
"page": "svdquant_linear_fp8/4352x3072x3072x128-bf16",
"name": "svdquant_linear_fp8 4352,3072,3072,128"
},
{
"page": "svdquant_linear_fp8/4608x3072x3072x128-bf16",
"name": "svdquant_linear_fp8 4608,3072,3072,128"
},
{
"page": "svdquant_linear_fp8/1024x3072x9216x128-bf16",
"name": "svdquant_linear_fp8 1024,3072,9216,128"
},
{
"page": "svdquant_linear_fp8/4352x3072x9216x128-bf16",
"name": "svdquant_linear_fp8 4352,3072,9216,128"
},
{
"page": "svdquant_linear_fp8/4608x3072x9216x128-bf16",
"name": "svdquant_linear_fp8 4608,3072,9216,128"
},
{
"page": "svdquant_linear_fp8/1024x3072x12288x128-bf16",
"name": "svdquant_linear_fp8 1024,3072,12288,128"
},
{
"page": "svdquant_linear_fp8/4096x3072x12288x128-bf16",
"name": "svdquant_linear_fp8 4096,3072,12288,128"
},
{
"page": "svdquant_linear_fp8/4352x3072x12288x128-bf16",
"name": "svdquant_linear_fp8 4352,3072,12288,128"
},
{
"page": "svdquant_linear_fp8/4608x3072x12288x128-bf16",
"name": "svdquant_linear_fp8 4608,3072,12288,128"
},
{
"page": "svdquant_linear_fp8/512x3840x3072x128-bf16",
"name": "svdquant_linear_fp8 512,3840,3072,128"
},
{
"page": "svdquant_linear_fp8/1024x3840x3072x128-bf16",
"name": "svdquant_linear_fp8 1024,3840,3072,128"
},
{
"page": "svdquant_linear_fp8/4352x3840x3072x128-bf16",
"name": "svdquant_linear_fp8 4352,3840,3072,128"
},
{
"page": "svdquant_linear_fp8/1024x12288x3072x128-bf16",
"name": "svdquant_linear_fp8 1024,12288,3072,128"
},
{
"page": "svdquant_linear_fp8/4096x12288x3072x128-bf16",
"name": "svdquant_linear_fp8 4096,12288,3072,128"
},
{
"page": "svdquant_linear_fp8/4352x12288x3072x128-bf16",
"name": "svdquant_linear_fp8 4352,12288,3072,128"
},
{
"page": "svdquant_linear_fp8/4608x12288x3072x128-bf16",
"name": "svdquant_linear_fp8 4608,12288,3072,128"
},
{
"page": "svdquant_linear_fp8/4608x15360x3072x128-bf16",
"name": "svdquant_linear_fp8 4608,15360,3072,128"
},
{
"page": "svdquant_linear_fp8/1024x15360x3840x128-bf16",
"name": "svdquant_linear_fp8 1024,15360,3840,128"
},
{
"page": "svdquant_linear_fp8/4352x15360x3840x128-bf16",
"name": "svdquant_linear_fp8 4352,15360,3840,128"
}
];
