"""Claims of arithmetic in the text of a step: lexemes, operands, claims, and what is true of them.

Nothing of a text is evaluated but trees of the bounded parser of ``stepward.verifiers.answers``.
"""
