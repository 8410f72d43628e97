"""Exact, typed comparison of final answers: text to values, values to canonical forms, forms to a finding.

``compare.compare_answers`` is the entry. Everything here is bounded by work (characters, tokens, depth, terms,
bits) before it starts, runs nothing that a text asks for, and is deterministic.
"""
