"""The kernel ``sm100a`` of ``svdquant_gemm`` with an epilogue that quantizes."""
