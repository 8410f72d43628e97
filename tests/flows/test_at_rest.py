"""The collector is as it was after a run, also after one that failed."""

import gc

import pytest

from stepward.flows.at_rest import YOUNG, at_rest


def test_thresholds_and_frozen_objects_are_given_back_after_a_fault():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()

    def run() -> None:
        with at_rest():
            assert gc.get_threshold()[0] >= YOUNG
            assert gc.get_freeze_count() > frozen
            raise RuntimeError("a run")

    with pytest.raises(RuntimeError, match="a run"):
        run()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_threshold_that_someone_raised_further_stays():
    before = gc.get_threshold()
    gc.set_threshold(10 * YOUNG)
    try:
        with at_rest():
            assert gc.get_threshold()[0] == 10 * YOUNG
    finally:
        gc.set_threshold(*before)
