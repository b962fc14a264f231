"""K/V as tensors: slabs, their bytes, placing, the splice pass, and cutting out new chunks."""
