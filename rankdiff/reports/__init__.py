"""Reports: finding them, reading them, and what Nsight Systems puts into them.

Nothing outside this package knows a table or a column of an export.
"""
