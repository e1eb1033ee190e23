"""The command line of rankdiff: parse, one library call, write."""
