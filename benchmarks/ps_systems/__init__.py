"""The systems that `benchmarks/ps.py` compares: TensorFlow's parameter servers, and elastane's."""
