"""Contract, section 5, by random schedules of agents: every read against a slow, obvious reference."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from multi_agent_reference import AGENTS, Reference, plain, play, random_log, state_of
from parts import examples

from lockstep.data import MultiAgentBatch, MultiAgentEpisode, shard_episodes

LOGS = st.builds(
    random_log,
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    ending=st.sampled_from(["open", "terminated", "truncated"]),
)
QUICK = examples(60)


def pieces_of(data, log):
    """A piece of the episode: (begin, end, lookback)."""
    begin = data.draw(st.integers(0, len(log)))
    return begin, data.draw(st.integers(begin, len(log))), data.draw(st.integers(0, begin))


def check_reads(episode, reference, rng):
    """Every getter, with random indices, as the reference says."""
    length, back = len(episode), episode.len_lookback_buffer
    for column in ("observations", "infos", "actions", "rewards"):
        get = getattr(episode, f"get_{column}")
        last = length if column in ("observations", "infos") else length - 1
        everywhere = range(-back, last + 1)
        times = {index: reference.begin + index for index in everywhere}
        assert plain(get()) == reference.read(column, [times[i] for i in everywhere if i >= 0])
        if len(everywhere):
            some = rng.choice(everywhere, size=3).tolist()
            chosen = [times[i] for i in some]
            assert plain(get(some, neg_index_as_lookback=True)) == reference.read(column, chosen)
            at = {agent: rows[0] for agent, rows in reference.read(column, chosen[:1]).items()}
            assert plain(get(some[0], neg_index_as_lookback=True)) == at
            from_end = some[0] - (last + 1)
            assert plain(get(from_end)) == at
            listed = plain(get(some, neg_index_as_lookback=True, return_list=True))
            one_by_one = [reference.read(column, [t]) for t in chosen]
            assert listed == [{agent: rows[0] for agent, rows in part.items()} for part in one_by_one]
        start, stop = sorted(rng.integers(-back - 2, length + 4, size=2).tolist())
        inside = [times[i] for i in range(start, stop) if i in times]
        assert plain(get(slice(start, stop), neg_index_as_lookback=True)) == reference.read(column, inside)
        if column == "actions":
            beyond = [reference.begin + i if i in times else 10**6 for i in range(start, stop)]
            filled = plain(get(slice(start, stop), neg_index_as_lookback=True, fill=-7))
            assert filled == (reference.read(column, beyond, fill=-7) if stop > start else {})
        for agent in reference.agents():
            items, own_back = reference.by_own_step(column, agent)
            own = plain(get(slice(-own_back, None), agent, env_steps=False, neg_index_as_lookback=True))
            assert own.get(agent, []) == items
    extras = plain(episode.get_extra_model_outputs(return_list=True))
    assert extras == [
        {agent: rows[0] for agent, rows in reference.read("extra", [reference.begin + i]).items()}
        for i in range(length)
    ]


def check(episode, reference, rng):
    """All that can be asked of an episode."""
    episode.validate()
    assert episode.agent_ids == reference.agents()
    check_reads(episode, reference, rng)
    assert (episode.get_return(), episode.get_return(include_hanging_rewards=True)) == reference.returns()
    assert episode.get_agents_to_act() == reference.able()
    now = {agent for agent in reference.agents() if reference.seen[agent][-1].time == reference.end}
    assert episode.get_agents_that_stepped() == now
    assert episode.agent_steps() == sum(len(reference.closed(agent)) for agent in AGENTS)
    for agent, single in episode.agent_episodes.items():
        ended = reference.ended.get(agent, (None, False, False))[1:]
        assert (single.is_terminated, single.is_truncated) == tuple(ended)
        begin = reference.begin - episode.len_lookback_buffer
        mapped = [(t + begin, own) for t, own in enumerate(episode.env_t_to_agent_t[agent]) if own != "S"]
        every = [one.time for one in reference.seen[agent]]
        assert mapped == [(t, own) for own, t in enumerate(every) if t >= begin]
    batch = episode.get_sample_batch()
    assert batch.env_steps() == reference.end - reference.begin
    for module in ("p", "q"):
        rows = reference.rows(module)
        assert (module in batch) == bool(rows)
        if rows:
            part = batch[module]
            names = ("agent_id", "t", "obs", "actions", "rewards", "new_obs", "v")
            order = part.copy(shallow=True)["agent_id"].argsort(kind="stable")
            assert list(zip(*[plain(part[name][order]) for name in names])) == rows


@QUICK
@given(log=LOGS, seed=st.integers(0, 2**32 - 1))
def test_recorded_schedule_reads_as_the_reference(log, seed):
    (episode,) = play(log)
    check(episode, Reference(log, 0, len(log), 0), np.random.default_rng(seed))


@QUICK
@given(log=LOGS, data=st.data())
def test_slice_reads_as_the_reference(log, data):
    begin, end, lookback = pieces_of(data, log)
    (episode,) = play(log)
    part = episode.slice(slice(begin, end), len_lookback_buffer=lookback)
    check(part, Reference(log, begin, end, lookback), np.random.default_rng(begin))


@QUICK
@given(log=LOGS, data=st.data())
def test_slice_of_a_slice_is_a_slice(log, data):
    begin, end, lookback = pieces_of(data, log)
    (episode,) = play(log)
    outer = episode[:end] if data.draw(st.booleans()) else episode
    first = data.draw(st.integers(0, begin))
    inner = outer.slice(slice(first, None), len_lookback_buffer=data.draw(st.integers(0, first)))
    room = min(lookback, inner.len_lookback_buffer + begin - first)
    direct = episode.slice(slice(begin, end), len_lookback_buffer=room)
    assert state_of(inner.slice(slice(begin - first, end - first), len_lookback_buffer=room)) == state_of(direct)


@QUICK
@given(log=LOGS, data=st.data())
def test_cut_then_concat_is_the_same_episode(log, data):
    cuts = data.draw(st.sets(st.integers(0, len(log) - 1), max_size=3))
    lookback = data.draw(st.integers(0, 4))
    (whole,) = play(log)
    first, *rest = play(log, cuts=cuts, lookback=lookback)
    for part in rest:
        first.concat_episode(part)
    assert state_of(first) == state_of(whole)
    first.validate()


@QUICK
@given(log=LOGS, data=st.data())
def test_slices_concat_to_the_same_episode(log, data):
    (episode,) = play(log)
    begin = data.draw(st.integers(0, len(log) - 1))
    middle = data.draw(st.integers(begin, len(log) - 1))
    first = episode[begin:middle]
    first.concat_episode(episode[middle:])
    assert state_of(first) == state_of(episode[begin:])


@QUICK
@given(log=LOGS, data=st.data())
def test_an_episode_goes_on_from_its_state(log, data):
    now = data.draw(st.integers(0, len(log) - 1))
    (whole,), (episode,) = play(log), play(log, steps=now)
    episode = MultiAgentEpisode.from_state(episode.get_state(), whole.agent_to_module_mapping_fn)
    for t in range(now, len(log)):
        episode.add_env_step(
            *(log.observations[t + 1], log.actions[t], log.rewards[t], log.infos[t + 1]),
            terminateds=log.terminateds[t],
            truncateds=log.truncateds[t],
            extra_model_outputs=log.extras[t],
        )
    assert state_of(episode) == state_of(whole)


@QUICK
@given(log=LOGS, data=st.data())
def test_setters_put_back_what_the_getters_give(log, data):
    (episode,) = play(log)
    begin, end, lookback = pieces_of(data, log)
    part = episode.slice(slice(begin, end), len_lookback_buffer=lookback)
    before = state_of(part)
    start, stop = sorted(data.draw(st.tuples(st.integers(-lookback, len(part)), st.integers(-lookback, len(part)))))
    where = {"at_indices": slice(start, stop), "neg_index_as_lookback": True}
    for column in ("observations", "actions", "rewards"):
        for form in ({}, {"return_list": True}, {"env_steps": False}):
            read = getattr(part, f"get_{column}")(slice(start, stop), neg_index_as_lookback=True, **form)
            getattr(part, f"set_{column}")(new_data=read, **where, **form)
    read = part.get_extra_model_outputs("v", slice(start, stop), neg_index_as_lookback=True)
    part.set_extra_model_outputs(key="v", new_data=read, **where)
    after = state_of(part)
    for state in (before, after):
        for agent in state["agents"]:  # a new sum replaces the rewards that it is the sum of
            agent.pop("partial_rewards")
    assert after == before
    assert state_of(episode) == state_of(play(log)[0])


@QUICK
@given(log=LOGS, k=st.integers(1, 6), as_torch=st.booleans())
def test_timeslices_of_a_batch_share_out_its_env_steps(log, k, as_torch):
    batch = play(log)[0].get_sample_batch()
    if as_torch:
        for part in batch.policy_batches.values():
            part.update(
                {name: torch.as_tensor(np.asarray(part[name])) for name in ("obs", "actions", "rewards", "v", "w")}
            )
    rows = {module: list(zip(plain(batch[module]["agent_id"]), plain(batch[module]["t"]))) for module in batch}
    times = sorted({t for part in rows.values() for _, t in part})
    slices = batch.timeslices(k)
    got = [{module: list(zip(plain(p[module]["agent_id"]), plain(p[module]["t"]))) for module in p} for p in slices]
    chunks = [times[i : i + k] for i in range(0, len(times), k)]
    wanted = [{module: [row for row in part if row[1] in chunk] for module, part in rows.items()} for chunk in chunks]
    wanted = [{module: sorted(part, key=lambda row: row[1]) for module, part in one.items() if part} for one in wanted]
    assert [{module: sorted(part, key=lambda row: row[1]) for module, part in one.items()} for one in got] == wanted
    assert [p.env_steps() for p in slices] == [len(chunk) for chunk in chunks]
    joined = MultiAgentBatch.concat_samples(slices)
    assert (joined.env_steps(), joined.agent_steps()) == (len(times), batch.agent_steps())


@QUICK
@given(log=LOGS, num_shards=st.integers(1, 4))
def test_shard_episodes_shares_out_env_steps_of_multi_agent_episodes(log, num_shards):
    (episode,) = play(log)
    shards = shard_episodes([episode, episode[:1]], num_shards)
    sums = [sum(len(part) for part in shard) for shard in shards]
    assert sum(sums) == len(log) + 1
    assert max(sums) - min(sums) <= 1
    parts = [part for shard in shards for part in shard]
    assert sum(part.agent_steps() for part in parts) == episode.agent_steps() + episode[:1].agent_steps()
    assert sum(part.get_return() for part in parts) == episode.get_return() + episode[:1].get_return()
