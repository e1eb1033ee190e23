"""Seeded mutants of real captures: what they are made of, how they are made, and what must hold for each.

`python -m tests.mutation BASE SEED` makes one mutant again and judges it, alone.
"""
