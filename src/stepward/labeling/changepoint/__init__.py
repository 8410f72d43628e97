"""The change-point posterior: where a solution first goes wrong, from noisy rollouts at some of its prefixes.

``grid`` holds the unknown constants and their prior, ``chain`` the exact three-state inference, ``step_evidence``
the likelihoods of tool verdicts and PRM hints, ``problem`` the pooling over the solutions of one problem,
``refit`` empirical Bayes and the price that meets a budget. Numpy only.
"""
