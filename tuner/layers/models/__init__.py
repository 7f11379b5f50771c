"""Whole models: their linears quantized or replaced by loaded layers, and layers cut, joined and sharded."""
