"""Stepward makes the data for process reward models, trains them and proves them.

The way of the data: ``prm.problems`` -> ``labeling.annotate`` (with ``verifiers``) -> ``prm.dataset.store`` ->
``training`` -> ``prm.evaluation``; ``flows`` joins them.
"""

__version__ = "0.1.0"
