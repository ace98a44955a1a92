"""Single properties of several learners that act as one: rows, losses, decisions, errors, and the reducer itself."""

import itertools
import socket

import distributed_cases as cases
import numpy as np
import pytest

from lockstep.learner.reduction import DistributedReducer, LocalReducer


def assert_weights_near(first, second, tolerance=1e-12):
    for name, value in first.items():
        np.testing.assert_allclose(second[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("shuffle", [False, True])
def test_minibatch_k_holds_the_same_rows_however_many_learners_share_it(processes, shuffle):
    several = processes.run(3, cases.recorded_rows, shuffle)
    one = cases.recorded_rows(LocalReducer(), shuffle)
    assert len(one) == 3 * 2 * (24 // 7)
    for number, rows in enumerate(one):
        together = list(itertools.chain(*(learner[number] for learner in several)))
        assert sorted(together) == sorted(rows)
        assert len(rows) == 7
    assert any(not rows for learner in several for rows in learner)


def test_functions_of_means_and_penalties_on_parameters_are_those_of_one_learner(processes):
    several, one = processes.run(3, cases.custom_loss), cases.custom_loss(LocalReducer())
    for learner in several:
        assert_weights_near(one["weights"], learner["weights"])
    for name in ("total_loss", "bias"):
        expected = one["results"]["default_policy"][name]
        assert several[0]["results"]["default_policy"][name] == pytest.approx(expected, abs=1e-11)
    assert several[0]["results"] == several[1]["results"] == several[2]["results"]


def test_all_learners_stop_their_passes_where_one_wants_to(processes):
    assert processes.run(2, cases.stop_on_one) == [1, 1]


@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_a_bad_row_on_one_learner_has_the_same_effect_on_all(processes, policy):
    several = processes.run(2, cases.bad_row, policy)
    with pytest.warns(RuntimeWarning, match="not finite"):
        one = cases.bad_row(LocalReducer(), policy)
    for counts, weights in several:
        assert counts == one[0] == [0, 1, 0]
        assert_weights_near(one[1], weights)


@pytest.mark.parametrize(("who", "last_is_skipped"), [(None, 0), ([], 1)])
def test_nothing_to_train_is_a_counted_no_op_on_all_learners(processes, who, last_is_skipped):
    for skipped, last, counted in processes.run(3, cases.nothing_to_train, who):
        assert skipped == [1, 1]
        assert last == last_is_skipped
        assert counted == 2 + last_is_skipped


def test_a_batch_that_one_learner_refuses_changes_none_and_all_go_on(processes):
    first, second = processes.run(2, cases.one_bad_batch)
    assert first[0].startswith("LearnerError: no learner was updated, because of learner 1: KeyError")
    assert "lacks ['advantages']" in first[0]
    assert second[0].startswith("KeyError")
    assert first[1:] == second[1:] == (True, 16)


def test_learners_that_are_called_differently_all_refuse(processes):
    for text in processes.run(2, cases.different_options, kind="error"):
        assert text.startswith("ValueError: all learners must be called alike; learner 0 has")


def test_statistics_that_cannot_be_joined_are_refused(processes):
    for text in processes.run(2, cases.custom_statistics, kind="error"):
        assert "Own has statistics but no update_joined(data, join)" in text


# -- the reducer itself ---


def test_a_learner_that_takes_no_part_ends_the_call_with_a_clear_error(processes, tmp_path):
    texts, _ = processes.run(2, cases.silent_learner, tmp_path)
    assert texts[0].startswith("LearnerError: learner 0 of 2: a sum failed after")
    assert "(timeout_s=1). Another learner died, hangs, or makes other calls than this one" in texts[0]
    assert "has no connection to the others: a sum failed before; build the group again" in texts[1]


def test_a_learner_that_never_comes_ends_the_joining_with_a_clear_error(processes, tmp_path):
    (text,) = processes.run(1, cases.absent_learner, tmp_path, kind="error")
    assert text.startswith("LearnerError: learner 0 of 2: joining the group failed after")


def test_learners_find_each_other_over_tcp(processes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert processes.run(2, cases.over_tcp, port) == [2.0] * 2


def test_reducer_refuses_what_cannot_be():
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank={rank} is not one of 2 learners; ranks go from 0 to 1"):
            DistributedReducer(rank, 2, "nowhere")
    with pytest.raises(ValueError, match="'tcp://host:port'"):
        DistributedReducer(0, 2, "tcp://somewhere")
