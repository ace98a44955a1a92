"""Contract, section 5: cutting, joining, setting, building from lists; what is refused."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from episode_makers import edited
from gymnasium import spaces
from multi_agent_reference import plain, state_of
from test_data_multi_agent_episode import CASES, grown, in_turns

from lockstep.data import MultiAgentEpisode, SingleAgentEpisode

# ---- cut ----


def test_cut_in_the_middle_of_a_hanging_action_carries_action_and_rewards():
    episode = grown({"a": 0}, ({"b": 1}, {"a": 100}, {"a": 0.5}), ({"b": 2}, {"b": 101}, {"a": 0.25, "b": 1.0}))
    successor = episode.cut()
    assert (successor.id_, successor.env_t_started, successor.env_t, len(successor)) == ("e", 2, 2, 0)
    assert successor.agent_t_started == {"a": 0, "b": 1}
    assert successor.get_agents_to_act() == {"b"}
    assert plain(successor.get_observations()) == {"b": [2]}  # a's last one is older than the piece
    assert plain(successor.get_actions(env_steps=False)) == {"a": [100]}  # and waits
    assert successor.get_return() == 0.0
    assert successor.get_return(include_hanging_rewards=True) == 0.75
    successor.add_env_step({"a": 3}, {"b": 102}, {"a": 0.125})
    single = successor.agent_episodes["a"]
    assert (plain(single.get_observations()), plain(single.get_rewards())) == ([0, 3], [0.875])
    assert (episode.get_return(), successor.get_return()) == (1.0, 0.875)
    with pytest.raises(ValueError, match=r"acted again"):
        episode.cut().add_env_step({}, {"a": 1}, {})


def test_cut_knows_the_agents_that_were_done_before():
    episode = grown({"a": 0, "b": 10}, ({"a": 1, "b": 11}, {"a": 0, "b": 1}, {"a": 1, "b": 1}, {"b": True}))
    successor = episode.cut()
    assert successor.agent_ids == {"a"}
    with pytest.raises(ValueError, match=r"agent 'b' in env step 1.*done at t=1"):
        successor.add_env_step({"a": 2, "b": 12}, {"a": 1}, {"a": 1})
    assert episode.cut(1).agent_ids == {"a", "b"}  # b's step can be looked back at


# ---- slice ----


def test_slice_keeps_infos_custom_data_and_modules():
    episode = MultiAgentEpisode("e", agent_to_module_mapping_fn=lambda agent, _: f"m{agent}")
    episode.add_env_reset({"a": 0}, {"a": {"at": 0}})
    for t in range(4):
        episode.add_env_step({"a": t + 1}, {"a": t}, {"a": 1}, {"a": {"at": t + 1}})
    episode.custom_data["seen"] = 3
    part = episode[1:3]
    assert part.get_infos() == {"a": [{"at": 1}, {"at": 2}, {"at": 3}]}
    assert part.custom_data == {"seen": 3}
    assert part.agent_episodes["a"].module_id == part.module_for("a") == "ma"
    assert part.agent_episode_ids == episode.agent_episode_ids
    assert (part.env_t_started, part.env_t, part.agent_t_started) == (1, 3, {"a": 1})


@pytest.mark.parametrize("make", [MultiAgentEpisode.cut, lambda e: e[0:1], lambda e: e[:]])
def test_pieces_and_states_share_nothing_that_can_change_with_their_source(make):
    episode = MultiAgentEpisode("e")
    episode.add_env_reset({"a": 0}, {"a": {"at": 0}})
    logits = {"extra_model_outputs": {"a": {"logits": np.zeros(2)}}}
    episode.add_env_step({"a": 1}, {"a": np.array([0])}, {"a": 1}, {"a": {"at": 1}}, **logits)
    waiting = np.array([7])
    episode.add_env_step({}, {"a": waiting}, {"a": 1}, **logits)
    episode.custom_data["seen"] = {"rooms": [1]}
    part, state = make(episode), episode.get_state()
    part.custom_data["seen"]["rooms"].append(2)
    state["custom_data"]["seen"]["rooms"].append(3)
    part.agent_episodes["a"].get_infos(-1)["at"] = "elsewhere"
    for track in part._agents.values():
        if track.pending is not None:
            track.pending.action[0] = -1
            track.pending.extras["logits"][0] = -1
    assert episode.custom_data == {"seen": {"rooms": [1]}}
    assert episode.get_infos() == {"a": [{"at": 0}, {"at": 1}]}
    assert waiting.tolist() == [7]
    assert episode.get_extra_model_outputs("logits", -1)["a"].tolist() == [0.0, 0.0]


def test_a_fill_that_a_column_cannot_hold_is_refused_with_value_and_dtype():
    episode = MultiAgentEpisode("e")
    episode.add_env_reset({"a": 0})
    episode.add_env_step({"a": 1, "b": 5}, {"a": 0}, {"a": 1})
    for read in (episode.get_observations, episode.get_actions):
        with pytest.raises(ValueError, match=r"fill=9\.9 .* int64"):
            read([0, 1, 5], fill=9.9)
        with pytest.raises(ValueError, match=r"fill=9\.9 .* int64"):
            read([0, 1, 5], ["a"], env_steps=False, fill=9.9)
    assert plain(episode.get_observations([0, 1], fill=9.0)) == {"a": [0, 1], "b": [9, 5]}


def test_slice_is_done_only_at_the_end_of_a_done_episode():
    episode = grown(
        {"a": 0, "b": 10},
        ({"a": 1, "b": 11}, {"a": 0, "b": 1}, {"a": 1, "b": 1}),
        ({"a": 2}, {"a": 1}, {"a": 1}, {"__all__": True}),
    )
    assert not episode[:1].is_done
    assert not any(single.is_done for single in episode[:1].agent_episodes.values())  # b was done one step later
    assert episode[1:].is_terminated
    assert episode[1:].get_terminateds() == {"a": True, "b": True, "__all__": True}
    assert (episode[-1].env_t_started, len(episode[0])) == (1, 1)


# ---- concat ----


UNFIT = {
    "another id": (lambda e: edited(e[2:], id_="f"), r"different ids, 'e' and 'f'"),
    "another time": (lambda e: e[3:], r"ends at t=2, the second begins at t=3"),
    "an agent is missing": (lambda e: _without(e[2:], "a"), r"agent 'a' is alive at t=2 and missing"),
    "another observation": (lambda e: _with(e[2:], "observations", "b", 99), r"agent 'b'.*ends with observation"),
    "another action than the one that waits": (
        lambda e: _with(e[2:], "actions", "a", 99),
        r"agent 'a' waits with action .*100.*begins with .*99",
    ),
}


def _without(episode, agent):
    del episode._agents[agent], episode.agent_episodes[agent]
    return episode


def _with(episode, column, agent, value):
    getattr(episode, f"set_{column}")(new_data={agent: value}, at_indices=0, env_steps=False)
    return episode


@pytest.mark.parametrize("name", UNFIT)
def test_concat_refuses_and_changes_nothing(name):
    make, message = UNFIT[name]
    first, second = in_turns()[:2], make(in_turns(agent_episode_ids={}))
    for agent, single in first.agent_episodes.items():
        if agent in second.agent_episodes:
            second.agent_episodes[agent].id_ = single.id_
    before = state_of(first)
    with pytest.raises(ValueError, match=message):
        first.concat_episode(second)
    assert state_of(first) == before


# ---- setters ----


def setting(column="actions", **arguments):
    return column, arguments


OWN, LIST = {"env_steps": False}, {"return_list": True}
SETS = {  # arguments of the setter, and the column afterwards
    "one env step": (setting("observations", new_data={"b": 50}, at_indices=1), {"a": [0, 3], "b": [50, 2], "c": [4]}),
    "several": (
        setting("observations", new_data={"b": [50, 60]}, at_indices=[2, 1]),
        {"a": [0, 3], "b": [60, 50], "c": [4]},
    ),
    "all": (setting("observations", new_data={"a": [7, 8], "c": [9]}), {"a": [7, 8], "b": [1, 2], "c": [9]}),
    "from the end": (setting(new_data={"a": 7}, at_indices=-1), {"a": [100, 7], "b": [101, 102]}),
    "a pending action": (setting(new_data={"b": [7, 8]}), {"a": [100, 103], "b": [7, 8]}),
    "own steps": (setting(new_data={"a": 7, "b": 8}, at_indices=-1, **OWN), {"a": [100, 7], "b": [101, 8]}),
    "a list": (setting(new_data=[{"b": 5}, {}], at_indices=slice(1, 3), **LIST), {"a": [100, 103], "b": [5, 102]}),
    "agent_ids": (setting(new_data={"a": [1, 2], "b": [3, 4]}, agent_ids="a"), {"a": [1, 2], "b": [101, 102]}),
    "rewards that wait": (setting("rewards", new_data={"b": 32.0}, at_indices=2), {"a": [0.875, 0], "b": [1, 32]}),
}


@pytest.mark.parametrize("name", SETS)
def test_setter_case(name):
    (column, arguments), expected = SETS[name]
    episode = in_turns()
    getattr(episode, f"set_{column}")(**arguments)
    assert plain(getattr(episode, f"get_{column}")()) == expected
    episode.validate()


def test_setter_of_a_waiting_reward_counts_when_the_step_is_closed():
    episode = in_turns()
    episode.set_rewards(new_data={"b": 32.0}, at_indices=2)
    assert episode.get_return(include_hanging_rewards=True) == 1.875 + 32.0 + 64.0
    episode.add_env_step({"b": 5}, {}, {"b": 1.0})
    assert plain(episode.get_rewards(agent_ids="b")) == {"b": [1.0, 33.0]}


def test_setter_of_extra_model_outputs_sets_and_adds():
    episode = in_turns()
    episode.set_extra_model_outputs(key="v", new_data={"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert plain(episode.get_extra_model_outputs("v")) == {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    episode.set_extra_model_outputs(key="v", new_data={"b": 9.0}, at_indices=1)
    assert plain(episode.get_extra_model_outputs("v", agent_ids="b")) == {"b": [9.0, 4.0]}
    with pytest.raises(KeyError, match="agent 'a': no extra model output 'w'"):
        episode.set_extra_model_outputs(key="w", new_data={"a": [1.0]}, at_indices=[0])
    episode.add_env_step({"b": 5}, {}, {}, {})
    assert plain(episode.agent_episodes["b"].get_extra_model_outputs("v")) == [9.0, 4.0]


UNSETTABLE = {
    "outside the space": (setting(new_data={"a": [100, 500], "b": [1, 1]}), ValueError, r"agent 'a'.*500.*Discrete"),
    "waiting, outside the space": (setting(new_data={"b": 500}, at_indices=2), ValueError, r"agent 'b'.*500.*space"),
    "too many": (setting(new_data={"a": [1, 2, 3]}), IndexError, r"agent 'a': 3 new actions for 2 places"),
    "not there": (setting(new_data={"a": 1}, at_indices=1), IndexError, r"agent 'a' has no actions at t=1"),
    "unknown agent": (setting(new_data={"z": [1]}), KeyError, r"no agent 'z'.*'a', 'b', 'c'"),
    "agent without data": (setting(new_data={"b": [1, 1]}, agent_ids=["a"]), KeyError, r"new_data has no agent 'a'"),
    "no dict": (setting(new_data=[1, 2]), TypeError, r"new_data is a list; a dict"),
    "no list": (setting(new_data={"a": [1, 2]}, **LIST), TypeError, r"a list with one dict"),
    "list too short": (setting(new_data=[{"a": 1}], **LIST), IndexError, r"1 dicts of actions for 4"),
    "list, not there": (setting(new_data=[{"b": 1}], at_indices=[0], **LIST), IndexError, r"agent 'b' has no actions"),
    "out of range": (setting("observations", new_data={"a": 1}, at_indices=7), IndexError, r"index 7 of observations"),
}


@pytest.mark.parametrize("name", UNSETTABLE)
def test_setter_refuses_and_changes_nothing(name):
    (column, arguments), error, message = UNSETTABLE[name]
    episode = in_turns(action_space={agent: spaces.Discrete(200) for agent in "abc"})
    before = state_of(episode)
    with pytest.raises(error, match=message):
        getattr(episode, f"set_{column}")(**arguments)
    assert state_of(episode) == before


# ---- built from lists ----


@pytest.mark.parametrize("name", CASES)
def test_constructor_from_lists_is_the_recorded_episode(name):
    reset, steps, agents, (stands, _) = CASES[name]
    recorded = grown(reset, *steps)
    said = steps[-1][3:] and any("__all__" in flags for flags in steps[-1][3:])
    flags = {"terminateds": recorded.get_terminateds(), "truncateds": recorded.get_truncateds()}
    if not said:
        flags = {
            key: {agent: flag for agent, flag in named.items() if agent != "__all__"} for key, named in flags.items()
        }
    built = MultiAgentEpisode(
        "e",
        observations=[reset, *[step[0] for step in steps]],
        actions=[step[1] for step in steps],
        rewards=[step[2] for step in steps],
        **flags,
    )
    built.validate()
    for column in ("observations", "actions", "rewards", "infos"):
        assert plain(getattr(built, f"get_{column}")()) == plain(getattr(recorded, f"get_{column}")())
    assert {a: (s.is_terminated, s.is_truncated) for a, s in built.agent_episodes.items()} == {
        agent: case[3:] for agent, case in agents.items()
    }
    assert (built.is_terminated, built.is_truncated) == (stands == "terminated", stands == "truncated")


def test_constructor_lookback_is_not_counted():
    lists = {
        "observations": [{"a": t, "b": 10 * t} if t % 2 == 0 else {"a": t} for t in range(6)],
        "actions": [{"a": t, "b": 10 * t} if t % 2 == 0 else {"a": t} for t in range(5)],
        "rewards": [{"a": 1.0, "b": 0.5} for t in range(5)],
    }
    episode = MultiAgentEpisode("e", **lists, len_lookback_buffer=3, env_t_started=13, agent_t_started={"a": 7, "b": 2})
    assert (episode.env_t_started, episode.env_t, len(episode)) == (13, 15, 2)
    assert plain(episode.get_observations()) == {"a": [3, 4, 5], "b": [40]}
    assert plain(episode.get_actions(slice(-3, None), neg_index_as_lookback=True)) == {
        "a": [0, 1, 2, 3, 4],
        "b": [0, 20, 40],
    }
    assert (episode.agent_episodes["b"].t_started, episode.agent_episodes["b"].t) == (2, 3)
    assert episode.get_return() == 3.0  # a's two steps, and b's from 2 to 4, of which one half is in the lookback
    assert len(MultiAgentEpisode("e", **lists, len_lookback_buffer="auto")) == 0
    assert len(MultiAgentEpisode("e", **lists)) == 5


# ---- state, validate ----


def test_state_is_plain_data_and_an_exact_round_trip():
    space = {1: spaces.Discrete(200), ("b", 2): spaces.Discrete(200)}
    episode = MultiAgentEpisode(observation_space=space, action_space=space, agent_module_ids={1: "p"})
    episode.add_env_reset({1: 0}, {1: {"k": 1}})
    episode.add_env_step({("b", 2): 5}, {1: 3}, {1: 0.5, ("b", 2): 2}, extra_model_outputs={1: {"v": 0.25}})
    episode.custom_data["note"] = "x"
    state = episode.get_state()
    json.dumps(plain(state))
    again = MultiAgentEpisode.from_state(state)
    assert plain(again.get_state()) == plain(state)
    assert again.get_agents_to_act() == {("b", 2)}
    assert again.observation_space[1] == space[1]
    assert plain(again.get_observations(agent_ids=("b", 2))) == {("b", 2): [5]}
    again.add_env_step({1: 7}, {("b", 2): 1}, {1: 1.0}, extra_model_outputs={("b", 2): {"v": 0.0}})
    assert plain(again.agent_episodes[1].get_rewards()) == [1.5]
    assert len(episode) == 1  # nothing is shared


BROKEN = {
    "times": (lambda e: e._agents["a"].times.reverse(), r"agent 'a': times \[3, 0\]"),
    "a missing time": (lambda e: e._agents["a"].times.pop(), r"agent 'a': 1 steps need one more observation"),
    "an end without a flag": (lambda e: setattr(e._agents["b"], "ended_at", 3), r"agent 'b': is_done=False"),
    "a column": (lambda e: setattr(e.agent_episodes["a"], "t", 5), r"agent 'a': "),
    "a module": (lambda e: e._modules.update(a="q"), r"agent 'a': modules 'default_policy' and 'q'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_validate_names_the_agent_and_the_values(name):
    change, message = BROKEN[name]
    episode = in_turns()
    change(episode)
    with pytest.raises(ValueError, match=message):
        episode.validate()


def test_agents_episodes_are_single_agent_episodes_of_the_episode():
    episode = in_turns(agent_episode_ids={"a": "mine"})
    single = episode.agent_episodes["a"]
    assert isinstance(single, SingleAgentEpisode)
    assert (single.id_, single.agent_id, single.multi_agent_episode_id) == ("mine", "a", "e")
    assert len({one.id_ for one in episode.agent_episodes.values()}) == 3


def test_nested_observations_are_read_as_trees():
    episode = grown(
        {"a": {"x": np.zeros(2), "y": 0}},
        ({"a": {"x": np.ones(2), "y": 1}}, {"a": (0, 1)}, {"a": 1}),
        ({}, {"a": (2, 3)}, {"a": 1}),
    )
    assert plain(episode.get_observations()) == {"a": {"x": [[0, 0], [1, 1]], "y": [0, 1]}}
    first, second = episode.get_actions()["a"]
    assert (first.tolist(), second.tolist()) == ([0, 2], [1, 3])
    assert plain(episode.get_observations(0, return_list=True)) == [{"a": {"x": [0, 0], "y": 0}}]


def test_episodes_can_be_copied_and_sent_to_another_process():
    episode = in_turns()[1:]
    for again in (copy.deepcopy(episode), pickle.loads(pickle.dumps(episode))):
        assert state_of(again) == state_of(episode)
        again.add_env_step({"b": 5}, {}, {"b": 1.0})
        assert plain(again.get_rewards(agent_ids="b")) == {"b": [1.0, 7.0]}
    assert len(episode) == 3


def test_observations_and_actions_may_be_tensors():
    episode = grown(
        {"a": torch.tensor([1.0])},
        ({"a": torch.tensor([2.0])}, {"a": torch.tensor(3)}, {"a": 1}),
        ({}, {"a": torch.tensor(4)}, {"a": 1}),
    )
    assert episode.get_actions()["a"].tolist() == [3, 4]
    assert episode.get_observations()["a"].tolist() == [[1.0], [2.0]]
