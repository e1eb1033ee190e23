"""Compiled kernels: numpy arrays in, numpy arrays out, int64 nanoseconds, half-open intervals."""
