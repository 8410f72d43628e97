"""Trees as rows: which completions are rows, where the others go, and that nothing drawn is lost."""

from stepward.labeling.searched import laid_out

A, B = (1,), (2,)


def test_a_row_is_taken_for_every_leaf_and_the_others_are_rollouts_on_its_path():
    # A tree of two steps under the question and one below the first: a completion from each of the three nodes.
    prefixes = [[(), A], [(), B], [(), A, (1, 3)]]
    starts = [A, B, (1, 3)]
    rows, places = laid_out(prefixes, starts, num_solutions=4)
    # the third passes through A: it is a row, and the first one a rollout at its prefix 1
    assert rows == [2, 1]
    assert places == {0: (0, 1)}


def test_the_first_completions_of_the_question_are_rows_whatever_the_search_did_with_them():
    prefixes = [[(), A], [(), A], [(), B], [(), A, (1, 3)]]
    starts = [(), (), (), (1, 3)]
    rows, places = laid_out(prefixes, starts, num_solutions=2)
    assert rows == [0, 1, 3]
    assert places == {2: (0, 0)}


def test_rewrites_are_rows_and_rollouts_of_nothing():
    rows, places = laid_out([[()], [()], [(), A]], [(), None, None], num_solutions=1)
    assert (rows, places) == ([0, 1, 2], {})


def test_what_goes_on_from_inside_a_step_is_a_row_if_it_can_be_one_and_else_in_no_place():
    # the second goes on from ids that are no prefix of it by steps; the third failed in the engine
    rows, places = laid_out([[(), A], [(), (1, 5, 6)], None], [A, (1, 5), (1, 5)], num_solutions=1)
    assert rows == [0, 1]
    assert places == {}


def test_of_completions_that_serve_as_many_the_first_one_is_the_row():
    rows, places = laid_out([[(), A], [(), A]], [A, A], num_solutions=1)
    assert (rows, places) == ([0], {1: (0, 1)})
