"""Which prefix gets the next rollout: one file a rule, all of the type ``AllocationRule``.

A rule is a pure function of one problem's evidence and of run-wide constants. It hands out rounds: the next
round is asked for when every draw of the last one has ended, so no draw is dropped for being slow.
"""
