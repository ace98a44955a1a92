"""Contract, section 5: how a `MultiAgentEpisode` grows, in tables of cases, and what it refuses."""

import pytest
from gymnasium import spaces
from multi_agent_reference import plain

from lockstep.data import MultiAgentBatch, MultiAgentEnvError, MultiAgentEpisode, SampleBatch, SingleAgentEpisode


def grown(reset, *steps, id_="e", **options):
    """An episode of `steps` (observations, actions, rewards[, terminateds[, truncateds]])."""
    episode = MultiAgentEpisode(id_, **options)
    episode.add_env_reset(reset)
    for observations, actions, rewards, *flags in steps:
        ends = dict(zip(("terminateds", "truncateds"), flags))
        episode.add_env_step(observations, actions, rewards, **ends)
    return episode


# Each case: reset observations, steps, then what each agent's own episode holds:
# agent -> (observations, actions, rewards, terminated, truncated), and how the episode stands, agents to act.
CASES = {
    "all act at every step": (
        {"a": 0, "b": 10},
        [
            ({"a": 1, "b": 11}, {"a": 0, "b": 5}, {"a": 1.0, "b": 2.0}),
            ({"a": 2, "b": 12}, {"a": 1, "b": 6}, {"a": 3, "b": 4}),
        ],
        {"a": ([0, 1, 2], [0, 1], [1, 3], False, False), "b": ([10, 11, 12], [5, 6], [2, 4], False, False)},
        ("open", {"a", "b"}),
    ),
    "turns: rewards are summed until the next observation": (
        {"a": 0},
        [
            ({"b": 1}, {"a": 0}, {"a": 1.0}),
            ({"a": 2}, {"b": 1}, {"a": 2.0, "b": 4.0}),
            ({"b": 3}, {"a": 2}, {"a": 8.0, "b": 16.0}),
        ],
        {"a": ([0, 2], [0], [3], False, False), "b": ([1, 3], [1], [20], False, False)},
        ("open", {"b"}),
    ),
    "late: an agent appears after the reset": (
        {"a": 0},
        [({"a": 1}, {"a": 0}, {"a": 1}), ({"a": 2, "b": 7}, {"a": 1}, {"a": 1}), ({"b": 8}, {"b": 3}, {"b": 2})],
        {"a": ([0, 1, 2], [0, 1], [1, 1], False, False), "b": ([7, 8], [3], [2], False, False)},
        ("open", {"a", "b"}),
    ),
    "late: rewards before the first observation are no step's": (
        {"a": 0},
        [({"a": 1}, {"a": 0}, {"a": 1, "b": 50}), ({"b": 7}, {}, {"b": 60}), ({"b": 8}, {"b": 3}, {"b": 2})],
        {"a": ([0, 1], [0], [1], False, False), "b": ([7, 8], [3], [2], False, False)},
        ("open", {"a", "b"}),
    ),
    "early: an agent terminates, the others go on": (
        {"a": 0, "b": 10},
        [({"a": 1, "b": 11}, {"a": 0, "b": 1}, {"a": 1, "b": 1}, {"b": True}), ({"a": 2}, {"a": 1}, {"a": 1})],
        {"a": ([0, 1, 2], [0, 1], [1, 1], False, False), "b": ([10, 11], [1], [1], True, False)},
        ("open", {"a"}),
    ),
    "early: a terminated agent whose action waits repeats its last observation": (
        {"a": 0, "b": 10},
        [({"a": 1}, {"a": 0, "b": 1}, {"a": 1, "b": 1}), ({"a": 2}, {"a": 1}, {"a": 1, "b": 2}, {"b": True})],
        {"a": ([0, 1, 2], [0, 1], [1, 1], False, False), "b": ([10, 10], [1], [3], True, False)},
        ("open", {"a"}),
    ),
    "early: an agent that terminates in the step of its action": (
        {"a": 0, "b": 10},
        [({"a": 1}, {"a": 0, "b": 1}, {"a": 1, "b": 5}, {"b": True})],
        {"a": ([0, 1], [0], [1], False, False), "b": ([10, 10], [1], [5], True, False)},
        ("open", {"a"}),
    ),
    "__all__ terminated: who holds an observation is done without a step": (
        {"a": 0, "b": 10},
        [({"a": 1}, {"a": 0}, {"a": 1}), ({"a": 2}, {"a": 1}, {"a": 1}, {"__all__": True})],
        {"a": ([0, 1, 2], [0, 1], [1, 1], True, False), "b": ([10], [], [], True, False)},
        ("terminated", set()),
    ),
    "__all__ terminated: who waits closes the step": (
        {"a": 0},
        [({"b": 1}, {"a": 0}, {"a": 1}), ({}, {"b": 3}, {"a": -1, "b": 1}, {"__all__": True})],
        {"a": ([0, 0], [0], [0], True, False), "b": ([1, 1], [3], [1], True, False)},
        ("terminated", set()),
    ),
    "__all__ truncated: with the last observations": (
        {"a": 0},
        [({"b": 1}, {"a": 0}, {"a": 1}), ({"a": 2, "b": 3}, {"b": 3}, {"b": 1}, {}, {"__all__": True})],
        {"a": ([0, 2], [0], [1], False, True), "b": ([1, 3], [3], [1], False, True)},
        ("truncated", set()),
    ),
    "__all__ truncated: an agent's own flag goes before": (
        {"a": 0, "b": 10},
        [({"a": 1, "b": 11}, {"a": 0, "b": 1}, {"a": 1, "b": 1}, {"a": True, "__all__": False}, {"__all__": True})],
        {"a": ([0, 1], [0], [1], True, False), "b": ([10, 11], [1], [1], False, True)},
        ("truncated", set()),
    ),
    "__all__ for an agent that appears in the last step": (
        {"a": 0},
        [({"a": 1, "b": 7}, {"a": 0}, {"a": 1}, {}, {"__all__": True})],
        {"a": ([0, 1], [0], [1], False, True), "b": ([7], [], [], False, True)},
        ("truncated", set()),
    ),
    "no __all__: truncated where all that end last are": (
        {"a": 0, "b": 10},
        [
            ({"a": 1, "b": 11}, {"a": 0, "b": 1}, {"a": 1, "b": 1}, {"b": True}),
            ({"a": 2}, {"a": 1}, {"a": 1}, {"a": False}, {"a": True}),
        ],
        {"a": ([0, 1, 2], [0, 1], [1, 1], False, True), "b": ([10, 11], [1], [1], True, False)},
        ("truncated", set()),
    ),
    "no __all__: terminated with the last agent": (
        {"a": 0, "b": 10},
        [({"a": 1, "b": 11}, {"a": 0, "b": 1}, {"a": 1, "b": 1}, {"a": True}, {"b": True})],
        {"a": ([0, 1], [0], [1], True, False), "b": ([10, 11], [1], [1], False, True)},
        ("terminated", set()),
    ),
    "__all__ False keeps an episode open for agents still to come": (
        {"a": 0},
        [({"a": 1}, {"a": 0}, {"a": 1}, {"a": True, "__all__": False}), ({"b": 7}, {}, {}, {"__all__": False})],
        {"a": ([0, 1], [0], [1], True, False), "b": ([7], [], [], False, False)},
        ("open", {"b"}),
    ),
    "an agent may answer later than at once": (
        {"a": 0, "b": 10},
        [({"b": 11}, {"b": 1}, {"a": 1, "b": 1}), ({"a": 2}, {"a": 4}, {"a": 2})],
        {"a": ([0, 2], [4], [3], False, False), "b": ([10, 11], [1], [1], False, False)},
        ("open", {"a", "b"}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_add_env_step_case(name):
    reset, steps, agents, (stands, to_act) = CASES[name]
    ends = stands == "terminated", stands == "truncated"
    episode = grown(reset, *steps)
    episode.validate()
    held = {
        agent: (
            plain(single.get_observations()),
            plain(single.get_actions()),
            plain(single.get_rewards()),
            single.is_terminated,
            single.is_truncated,
        )
        for agent, single in episode.agent_episodes.items()
    }
    assert held == agents
    assert (episode.is_terminated, episode.is_truncated) == ends
    assert episode.is_done == any(ends)
    assert episode.get_agents_to_act() == to_act
    assert episode.env_steps() == len(episode) == len(steps)
    assert episode.agent_steps() == sum(len(case[1]) for case in agents.values())
    assert episode.get_terminateds() == {**{a: case[3] for a, case in agents.items()}, "__all__": ends[0]}
    assert episode.get_truncateds() == {**{a: case[4] for a, case in agents.items()}, "__all__": ends[1]}
    everything = sum(sum(step[2].values()) for step in steps)
    assert episode.get_return(include_hanging_rewards=True) == everything
    assert episode.get_return() == sum(sum(case[2]) for case in agents.values())


def in_turns(**options):
    """a observes at 0 and 3, b at 1 and 2, c at 4; b's last action waits since step 2."""
    return grown(
        {"a": 0},
        ({"b": 1}, {"a": 100}, {"a": 0.5}),
        ({"b": 2}, {"b": 101}, {"a": 0.25, "b": 1.0}),
        ({"a": 3}, {"b": 102}, {"a": 0.125, "b": 2.0}),
        ({"c": 4}, {"a": 103}, {"b": 4.0, "c": 64.0}),
        **options,
    )


READS = {
    "None": (None, {"a": [0, 3], "b": [1, 2], "c": [4]}, {"a": [100, 103], "b": [101, 102]}),
    "int": (1, {"b": 1}, {"b": 101}),
    "last": (-1, {"c": 4}, {"a": 103}),
    "negative": (-2, {"a": 3}, {"b": 102}),
    "list": ([0, 2, 0], {"a": [0, 0], "b": [2]}, {"a": [100, 100], "b": [102]}),
    "slice": (slice(1, 3), {"b": [1, 2]}, {"b": [101, 102]}),
    "backwards": (slice(None, None, -1), {"a": [3, 0], "b": [2, 1], "c": [4]}, {"a": [103, 100], "b": [102, 101]}),
    "beyond": (slice(3, 9), {"a": [3], "c": [4]}, {"a": [103]}),
    "empty": (slice(2, 2), {}, {}),
}


@pytest.mark.parametrize("name", READS)
def test_getters_by_env_step_case(name):
    indices, observations, actions = READS[name]
    episode = in_turns()
    assert plain(episode.get_observations(indices)) == observations
    assert plain(episode.get_actions(indices)) == actions


GETS = [
    ("observations", {"return_list": True}, [{"a": 0}, {"b": 1}, {"b": 2}, {"a": 3}, {"c": 4}]),
    ("actions", {"return_list": True}, [{"a": 100}, {"b": 101}, {"b": 102}, {"a": 103}]),
    ("actions", {"indices": 1, "return_list": True}, [{"b": 101}]),
    ("rewards", {"indices": slice(2, None), "return_list": True}, [{"b": 6.0}, {"a": 0.0}]),
    ("infos", {"indices": -1, "return_list": True}, [{"c": {}}]),
    (
        "observations",
        {"indices": slice(-7, 2), "fill": -1},
        {"a": [-1, -1, 0, -1], "b": [-1, -1, -1, 1], "c": [-1] * 4},
    ),
    ("actions", {"indices": 2, "agent_ids": "a", "fill": -5}, {"a": -5}),
    ("infos", {"indices": [0, 1], "agent_ids": ["a"], "fill": {"no": 1}}, {"a": [{}, {"no": 1}]}),
    ("observations", {"indices": -1, "env_steps": False}, {"a": 3, "b": 2, "c": 4}),
    ("actions", {"indices": slice(None, 1), "env_steps": False}, {"a": [100], "b": [101]}),
    ("actions", {"indices": -1, "agent_ids": {"a", "b"}, "env_steps": False}, {"a": 103, "b": 102}),
]


@pytest.mark.parametrize("name, how, expected", GETS)
def test_getters_in_every_form(name, how, expected):
    assert plain(getattr(in_turns(), f"get_{name}")(**how)) == expected


def test_getters_one_hot_of_discrete_values():
    spaces_ = {"a": spaces.Discrete(3), "b": spaces.Discrete(2)}
    episode = grown(
        {"a": 2, "b": 0},
        ({"b": 1}, {"a": 1, "b": 0}, {"a": 1, "b": 0}),
        observation_space=spaces_,
        action_space=spaces_,
    )
    assert plain(episode.get_observations(0, one_hot_discrete=True)) == {"a": [0, 0, 1], "b": [1, 0]}
    assert plain(episode.get_actions(one_hot_discrete=True)) == {"a": [[0, 1, 0]], "b": [[1, 0]]}
    assert plain(episode.get_observations([1], one_hot_discrete=True, fill=0.0)) == {"a": [[0, 0, 0]], "b": [[0, 1]]}


def test_extra_model_outputs_of_closed_and_waiting_actions():
    episode = MultiAgentEpisode("e")
    episode.add_env_reset({"a": 0, "b": 5})
    episode.add_env_step({"b": 6}, {"a": 1, "b": 2}, {"b": 0}, extra_model_outputs={"a": {"v": 1.5}, "b": {"v": 2.5}})
    episode.add_env_step({}, {"b": 3}, {}, extra_model_outputs={"b": {"v": 3.5}})
    assert plain(episode.get_extra_model_outputs("v")) == {"a": [1.5], "b": [2.5, 3.5]}
    assert plain(episode.get_extra_model_outputs(indices=0)) == {"a": {"v": 1.5}, "b": {"v": 2.5}}
    assert plain(episode.get_extra_model_outputs("v", return_list=True)) == [{"a": 1.5, "b": 2.5}, {"b": 3.5}]


# ---- what is refused ----


REFUSED = [  # observations, actions, rewards; what else came; words
    (({"b": 12}, {}, {}), {}, r"agent 'b' in env step 1.*done at t=1"),
    (({}, {}, {"b": 1.0}), {}, r"rewards came, but the agent was done at t=1"),
    (({}, {"b": 1}, {}), {}, r"actions came, but the agent was done"),
    (({}, {"x": 1}, {}), {}, r"agent 'x' in env step 1.*without having observed.*\['a'\]"),
    (({}, {"c": 1}, {}), {}, r"agent 'c'.*acted again.*t=0.*able to act are \['a'\]"),
    (({"a": 3}, {}, {}), {}, r"agent 'a'.*not acted since the one of t=1"),
    (({"a": 3}, {"a": 1}, {}), {}, r"agent 'a'.*no reward"),
    (({"a": 3}, {"a": 1}, {"a": "x"}), {}, r"agent 'a'.*the reward 'x' is a str"),
    (({}, {"a": 1}, {}), {"truncateds": {"a": True}}, r"agent 'a'.*truncated after an action"),
    (({}, {}, {}), {"truncateds": {"__all__": True}}, r"agent 'c'.*truncated after an action"),
    (({"a": None}, {"a": 1}, {"a": 1}), {}, r"None in observations"),
    (({"__all__": 1}, {}, {}), {}, r"for flags only"),
    (({}, {"a": 0}, {}), {"infos": {"a": {}}}, "info came without an observation"),
    (({}, {"a": 0}, {}), {"extra_model_outputs": {"a": 3}}, r"agent 'a'.*extra model outputs are a int"),
    (({}, {}, {}), {"extra_model_outputs": {"a": {"v": 1}}}, "model outputs came without an action"),
]


@pytest.mark.parametrize("step, more, message", REFUSED)
def test_add_env_step_refuses_and_changes_nothing(step, more, message):
    episode = grown(
        {"a": 0, "b": 10, "c": 20}, ({"a": 1, "b": 11}, {"a": 0, "b": 1, "c": 2}, {"a": 1, "b": 1}, {"b": True})
    )
    before = episode.get_state()
    with pytest.raises(MultiAgentEnvError, match=message):
        episode.add_env_step(*step, **more)
    assert plain(episode.get_state()) == plain(before)


def test_infos_belong_to_observations_and_common_ones_are_not_stored():
    episode = MultiAgentEpisode("e")
    episode.add_env_reset({"a": 0}, {"a": {"at": 0}, "__common__": {"seed": 1}})
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 1}, {"a": {"at": 1}, "__common__": {}})
    assert episode.get_infos() == {"a": [{"at": 0}, {"at": 1}]}


# ---- modules and batches ----


def test_module_for_asks_the_function_once_and_keeps_given_modules():
    asked = []

    def mapping(agent_id, episode):
        asked.append((agent_id, episode.id_))
        return f"module_of_{agent_id}"

    episode = grown({"a": 0, "b": 1}, agent_to_module_mapping_fn=mapping, agent_module_ids={"b": "fixed"})
    assert (episode.module_for("a"), episode.module_for("b"), episode.module_for("z")) == (
        "module_of_a",
        "fixed",
        "module_of_z",
    )
    assert asked == [("a", "e"), ("z", "e")]
    assert episode.agent_episodes["b"].module_id == "fixed"
    assert grown({"a": 0}).module_for("a") == "default_policy"


def test_get_sample_batch_is_by_module_with_env_times():
    batch = in_turns(agent_to_module_mapping_fn=lambda agent, _: "p" if agent in "ab" else "q").get_sample_batch()
    assert isinstance(batch, MultiAgentBatch)
    assert (batch.env_steps(), batch.agent_steps(), list(batch)) == (4, 2, ["p"])  # c has no closed step
    rows = batch["p"]
    assert isinstance(rows, SampleBatch)
    assert set(rows) == {
        *("obs", "new_obs", "actions", "rewards", "infos", "terminateds", "truncateds", "t", "eps_id"),
        *("agent_id", "module_id"),
    }
    told = {
        key: plain(rows[key])
        for key in ("obs", "new_obs", "actions", "rewards", "t", "agent_id", "module_id", "eps_id")
    }
    assert told == {
        "obs": [0, 1],
        "new_obs": [3, 2],
        "actions": [100, 101],
        "rewards": [0.875, 1.0],
        "t": [0, 1],
        "agent_id": ["a", "b"],
        "module_id": ["p", "p"],
        "eps_id": ["e", "e"],
    }


def test_print_is_a_time_line(capsys):
    episode = grown(
        {"a": 0},
        ({"b": 1}, {"a": 0}, {"a": 1}),
        ({"b": 2}, {"b": 1}, {"b": 1}),
        ({"a": 3}, {"b": 1}, {"a": 1}, {"b": True}),
    )
    episode.print()
    assert capsys.readouterr().out == "t 0 1 2 3\na x - - x\nb   x x T\n"
    assert repr(episode) == "MultiAgentEpisode('e', t=0..3, open, steps {'a': 1, 'b': 2})"


def test_get_sample_batch_splits_by_agent_into_single_trajectories():
    episode = grown(
        {"a": 0, "b": 10}, *[({"a": t + 1, "b": 11 + t}, {"a": t, "b": t}, {"a": 1, "b": 1}) for t in range(3)]
    )
    rows = episode.get_sample_batch()["default_policy"]
    assert not rows.is_single_trajectory()
    parts = rows.split_by_episode()
    assert [plain(part["agent_id"]) for part in parts] == [["a"] * 3, ["b"] * 3]
    again = SingleAgentEpisode.from_sample_batch(parts[1])
    assert (again.agent_id, again.module_id, plain(again.get_observations())) == (
        "b",
        "default_policy",
        [10, 11, 12, 13],
    )
    assert len(rows.split_by_episode("eps_id")) == 1
