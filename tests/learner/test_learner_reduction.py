"""Learners of one machine meet in shared memory and over sockets, with one outcome; and how often they meet."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from learner_parts import episodes, ppo_batch, ppo_config

from lockstep.learner.many import shared_memory
from lockstep.learner.many.reduction import DistributedReducer, LearnerError
from lockstep.learner.many.sharding import shards_of

LARGE = 3 * shared_memory.PIECE // 4 + 5  # more than one piece in any dtype


def reducers(folder, size, **options):
    with ThreadPoolExecutor(size) as pool:
        options = {"timeout_s": 20.0, **options}
        made = [pool.submit(DistributedReducer, rank, size, folder / "store", **options) for rank in range(size)]
        return [each.result() for each in made]


def on_all(members, work, *args):
    with ThreadPoolExecutor(len(members)) as pool:
        return [each.result() for each in [pool.submit(work, member, *args) for member in members]]


@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_sums_are_the_same_bits_for_all_in_both_ways(tmp_path, shares_memory, dtype):
    members = reducers(tmp_path, 3, shares_memory=shares_memory)
    assert {member._memory is not None for member in members} == {shares_memory}
    for shape in [(1,), (), (7, 5), (0,), (LARGE,), (2,)]:
        given = [(100 * torch.randn(shape, generator=torch.manual_seed(rank))).to(dtype) for rank in range(3)]
        summed = on_all(members, lambda member, all_of: member.sum_(all_of[member.rank].clone()), given)
        assert all(torch.equal(each, summed[0]) for each in summed)
        torch.testing.assert_close(summed[0], given[0] + given[1] + given[2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_exchanges_of_any_size(tmp_path, shares_memory):
    members = reducers(tmp_path, 2, shares_memory=shares_memory)
    texts = ["a", "b" * (2 * shared_memory.PIECE + 3)]
    assert (
        on_all(members, lambda member: member.gather({"text": texts[member.rank]}))
        == [[{"text": text} for text in texts]] * 2
    )


def test_many_exchanges_in_turn_never_read_later_values(tmp_path):
    members = reducers(tmp_path, 3)

    def count(member):
        generator = torch.Generator().manual_seed(member.rank)
        for number in range(200):
            if int(torch.randint(4, (1,), generator=generator)) == 0:
                time.sleep(0.0005)
            total = member.sum_(torch.full((5,), float(number)))
            assert (total == 3.0 * number).all(), number
        return member.num_calls

    assert len(set(on_all(members, count))) == 1


def test_a_learner_that_leaves_ends_the_calls_of_the_others_at_once(tmp_path):
    first, second = reducers(tmp_path, 2)
    second.close()
    with pytest.raises(LearnerError, match=r"learner 0 of 2: a sum failed .* The cause: learner 1 left"):
        first.sum_(torch.zeros(1))  # and not that it did not come within timeout_s
    assert not first.is_waiting


def test_a_learner_that_does_not_come_ends_the_call_after_timeout_s(tmp_path):
    first, second = reducers(tmp_path, 2, timeout_s=0.3)
    with pytest.raises(LearnerError, match=r"failed after \d+\.?\d* s \(timeout_s=0\.3\).* learner 1 did not come"):
        first.gather(1)
    with pytest.raises(LearnerError, match="learner 0 left"):
        second.gather(1)


def join_and_wait(folder, ready, forks):
    reducer = DistributedReducer(1, 2, folder / "store", timeout_s=60.0)
    if forks and os.fork() == 0:
        time.sleep(20)  # has what its parent has open
        os._exit(0)
    ready.set()
    reducer.sum_(torch.ones(1))
    time.sleep(60)


@pytest.mark.parametrize("forks", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_learner_that_is_killed_ends_the_calls_of_the_others_at_once(tmp_path, forks):
    """Also where a process that it forked lives on: that does not pass for it."""
    context = multiprocessing.get_context("forkserver")
    ready = context.Event()
    other = context.Process(target=join_and_wait, args=(tmp_path, ready, forks), daemon=True)
    other.start()
    reducer = DistributedReducer(0, 2, tmp_path / "store", timeout_s=60.0)
    assert reducer._memory is not None
    assert ready.wait(60)
    assert reducer.sum_(torch.ones(1)) == 2
    os.kill(other.pid, signal.SIGKILL)
    with pytest.raises(LearnerError, match="The cause: learner 1 died"):  # and not that it did not come
        reducer.sum_(torch.ones(1))
    other.join()


def test_calls_that_do_not_fit_together_raise_an_error(tmp_path):
    members = reducers(tmp_path, 2)

    def mismatched(member):
        with pytest.raises(LearnerError, match=r"makes other calls than this one\. The cause: learner . makes another"):
            member.sum_(torch.ones(3 + 2 * member.rank))
        return True

    assert on_all(members, mismatched) == [True, True]


@pytest.mark.parametrize("what", ["no room", "not supported", "an older Python", "another machine"])
def test_where_memory_cannot_be_shared_all_learners_meet_over_sockets(tmp_path, monkeypatch, what):
    if what == "no room":
        monkeypatch.setattr(os, "posix_fallocate", lambda *args: (_ for _ in ()).throw(OSError("no room")))
    elif what == "not supported":
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
    elif what == "an older Python":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "getpid", lambda: 1)  # there the same numbers are those of other processes
    members = reducers(tmp_path, 2)
    assert [member._memory for member in members] == [None, None]
    assert on_all(members, lambda member: float(member.sum_(torch.ones(1)))) == [2.0, 2.0]


# -- how often learners meet in an update, and how much they say: docs/scaling.md, "What it costs" ---


class Counting(DistributedReducer):
    """Remembers the bytes of each sum."""

    def __init__(self, *args):
        self.sums = []
        super().__init__(*args)

    def sum_(self, tensor):
        self.sums.append(tensor.numel() * tensor.element_size())
        return super().sum_(tensor)


@pytest.fixture(scope="module")
def learners(tmp_path_factory):
    config = ppo_config().framework(dtype="float32")
    store = tmp_path_factory.mktemp("meetings") / "store"
    with ThreadPoolExecutor(2) as pool:
        reducers = [each.result() for each in [pool.submit(Counting, rank, 2, store) for rank in range(2)]]
        yield pool, [config.build_learner(reducer=reducer) for reducer in reducers]


def update(learners, method, data, **options):
    """Meetings of one update, and the bytes of its sums."""
    pool, both = learners
    before = both[0].reducer.num_calls
    both[0].reducer.sums.clear()
    shards = shards_of(data, 2, {"default_policy": False})
    for each in [pool.submit(getattr(one, method), shard, **options) for one, shard in zip(both, shards)]:
        each.result()
    return both[0].reducer.num_calls - before, both[0].reducer.sums


@pytest.mark.parametrize(("passes", "rows"), [(1, 48), (1, 12), (3, 12), (2, 6)])
def test_ppo_reduces_9_times_once_per_pass_and_3_times_per_gradient_step(learners, passes, rows):
    steps = passes * 48 // rows
    options = {"num_epochs": passes, "minibatch_size": rows, "shuffle_batch_per_epoch": True}
    count, sums = update(learners, "update_from_episodes", episodes((20, 20, 8), ("terminated",) * 3), **options)
    assert count == 9 + (passes - 1) + 3 * steps
    gradient = 4 * sum(p.numel() for p in learners[1][0].module.parameters())
    assert sums.count(gradient) == steps
    assert sums.count(2 * 3 * 8) == steps  # moments of the advantages
    assert sums.count(5 * 4) == steps  # what the loss is made of
    assert sum(sums) == steps * (48 + 20 + gradient) + 4 * (passes - 1) + 8
    assert update(learners, "update_from_batch", ppo_batch(48), **options)[0] == count
