"""Import of ONNX graphs: ATen operators with attention recognised, positions made an input, and no cache."""
