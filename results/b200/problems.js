window.problems = [
{
"page": "nvfp4_quantize/4352x3840x0",
"name": "nvfp4_quantize 4352,3840,0"
},
{
"page": "nvfp4_quantize/4352x3840x128",
"name": "nvfp4_quantize 4352,3840,128"
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
"page": "svdquant_gemm/256x3840x3072x128",
"name": "svdquant_gemm 256,3840,3072,128"
},
{
"page": "svdquant_gemm/4352x3840x3072x128",
"name": "svdquant_gemm 4352,3840,3072,128"
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
"page": "svdquant_linear/4352x3840x3072x128",
"name": "svdquant_linear 4352,3840,3072,128"
}
];
