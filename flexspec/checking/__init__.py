"""Is speculation lossless here? Comparing it with plain decoding on a user's own machine, model and drafters."""
