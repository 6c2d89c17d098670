"""Measuring a compiled model against plain decoding and against other systems."""
