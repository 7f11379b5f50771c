window.problems = [
{
"page": "svdquant_linear/1x3072x3072x128-bf16",
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
"page": "svdquant_linear/64x3072x3072x128-bf16",
"name": "svdquant_linear 64,3072,3072,128"
},
{
"page": "svdquant_linear/128x3072x3072x128-bf16",
"name": "svdquant_linear 128,3072,3072,128"
},
{
"page": "svdquant_linear/256x3072x3072x128-bf16",
"name": "svdquant_linear 256,3072,3072,128"
},
{
"page": "svdquant_linear/4096x3072x3072x128-bf16",
"name": "svdquant_linear 4096,3072,3072,128"
},
{
"page": "svdquant_linear/4352x3072x3072x128-bf16",
"name": "svdquant_linear 4352,3072,3072,128"
},
{
"page": "svdquant_linear/4608x3072x3072x128-bf16",
"name": "svdquant_linear 4608,3072,3072,128"
},
{
"page": "svdquant_linear/16x3072x3072x512-bf16",
"name": "svdquant_linear 16,3072,3072,512"
},
{
"page": "svdquant_linear/4352x3072x3072x512-bf16",
"name": "svdquant_linear 4352,3072,3072,512"
},
{
"page": "svdquant_linear/1x3072x9216x128-bf16",
"name": "svdquant_linear 1,3072,9216,128"
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
"page": "svdquant_linear/4352x3072x9216x128-bf16",
"name": "svdquant_linear 4352,3072,9216,128"
},
{
"page": "svdquant_linear/1x3072x12288x128-bf16",
"name": "svdquant_linear 1,3072,12288,128"
},
{
"page": "svdquant_linear/16x3072x12288x128-bf16",
"name": "svdquant_linear 16,3072,12288,128"
},
{
"page": "svdquant_linear/64x3072x12288x128-bf16",
"name": "svdquant_linear 64,3072,12288,128"
},
{
"page": "svdquant_linear/4096x3072x12288x128-bf16",
"name": "svdquant_linear 4096,3072,12288,128"
},
{
"page": "svdquant_linear/4608x3072x12288x128-bf16",
"name": "svdquant_linear 4608,3072,12288,128"
},
{
"page": "svdquant_linear/1x3840x3072x128-bf16",
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
"page": "svdquant_linear/64x3840x3072x128-bf16",
"name": "svdquant_linear 64,3840,3072,128"
},
{
"page": "svdquant_linear/128x3840x3072x128-bf16",
"name": "svdquant_linear 128,3840,3072,128"
},
{
"page": "svdquant_linear/256x3840x3072x128-bf16",
"name": "svdquant_linear 256,3840,3072,128"
},
{
"page": "svdquant_linear/1x12288x3072x128-bf16",
"name": "svdquant_linear 1,12288,3072,128"
},
{
"page": "svdquant_linear/16x12288x3072x128-bf16",
"name": "svdquant_linear 16,12288,3072,128"
},
{
"page": "svdquant_linear/64x12288x3072x128-bf16",
"name": "svdquant_linear 64,12288,3072,128"
},
{
"page": "svdquant_linear/1x15360x3840x128-bf16",
"name": "svdquant_linear 1,15360,3840,128"
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
"page": "svdquant_linear_16bit/1x3072x3072x128-bf16",
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
"page": "svdquant_linear_16bit/32x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 32,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/48x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 48,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/64x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 64,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/128x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 128,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/256x3072x3072x128-bf16",
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
"page": "svdquant_linear_16bit/4096x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 4096,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/4352x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 4352,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/4608x3072x3072x128-bf16",
"name": "svdquant_linear_16bit 4608,3072,3072,128"
},
{
"page": "svdquant_linear_16bit/16x3072x3072x512-bf16",
"name": "svdquant_linear_16bit 16,3072,3072,512"
},
{
"page": "svdquant_linear_16bit/4352x3072x3072x512-bf16",
"name": "svdquant_linear_16bit 4352,3072,3072,512"
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
"page": "svdquant_linear_16bit/512x3072x9216x128-bf16",
"name": "svdquant_linear_16bit 512,3072,9216,128"
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
"page": "svdquant_linear_16bit/32x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 32,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/64x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 64,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/128x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 128,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/256x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 256,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/512x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 512,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/4096x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 4096,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/4352x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 4352,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/4608x3072x12288x128-bf16",
"name": "svdquant_linear_16bit 4608,3072,12288,128"
},
{
"page": "svdquant_linear_16bit/1x3840x3072x128-bf16",
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
"page": "svdquant_linear_16bit/32x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 32,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/64x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 64,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/128x3840x3072x128-bf16",
"name": "svdquant_linear_16bit 128,3840,3072,128"
},
{
"page": "svdquant_linear_16bit/256x3840x3072x128-bf16",
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
"page": "svdquant_linear_16bit/64x4096x4096x128-bf16",
"name": "svdquant_linear_16bit 64,4096,4096,128"
},
{
"page": "svdquant_linear_16bit/64x4096x6144x128-bf16",
"name": "svdquant_linear_16bit 64,4096,6144,128"
},
{
"page": "svdquant_linear_16bit/64x4096x14336x128-bf16",
"name": "svdquant_linear_16bit 64,4096,14336,128"
},
{
"page": "svdquant_linear_16bit/64x5120x5120x128-bf16",
"name": "svdquant_linear_16bit 64,5120,5120,128"
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
"page": "svdquant_linear_16bit/128x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 128,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/256x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 256,12288,3072,128"
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
"page": "svdquant_linear_16bit/4096x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 4096,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/4352x12288x3072x128-bf16",
"name": "svdquant_linear_16bit 4352,12288,3072,128"
},
{
"page": "svdquant_linear_16bit/64x14336x4096x128-bf16",
"name": "svdquant_linear_16bit 64,14336,4096,128"
},
{
"page": "svdquant_linear_16bit/4608x15360x3072x128-bf16",
"name": "svdquant_linear_16bit 4608,15360,3072,128"
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
"page": "svdquant_linear_fp8/512x3072x12288x128-bf16",
"name": "svdquant_linear_fp8 512,3072,12288,128"
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
"page": "svdquant_linear_fp8/4096x4096x4096x128-bf16",
"name": "svdquant_linear_fp8 4096,4096,4096,128"
},
{
"page": "svdquant_linear_fp8/4096x4096x14336x128-bf16",
"name": "svdquant_linear_fp8 4096,4096,14336,128"
},
{
"page": "svdquant_linear_fp8/512x12288x3072x128-bf16",
"name": "svdquant_linear_fp8 512,12288,3072,128"
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
"page": "svdquant_linear_fp8/4096x14336x4096x128-bf16",
"name": "svdquant_linear_fp8 4096,14336,4096,128"
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
