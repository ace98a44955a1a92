"""What is given wrongly is named: column, row, agent or argument, what was given and what is allowed."""

import numpy as np
import pytest
from episode_makers import edited, given, grown
from gymnasium import spaces
from test_data_multi_agent_episode import grown as grown_of_several
from test_data_multi_agent_episode import in_turns

from lockstep.data import (
    MiniBatchIterator,
    MultiAgentBatch,
    MultiAgentEnvError,
    MultiAgentEpisode,
    SampleBatch,
    SingleAgentEpisode,
    concat_samples,
    concat_samples_into_ma_batch,
    convert_ma_batch_to_sample_batch,
    minibatch_indices,
    shard_batch,
)
from lockstep.data.indices import cut_into_sequences


def batch(**changed):
    columns = {
        "obs": np.arange(4.0),
        "new_obs": np.arange(1.0, 5.0),
        "actions": np.array([0, 1, 0, 1]),
        "rewards": np.ones(4, np.float32),
        "terminateds": np.zeros(4, bool),
        "truncateds": np.zeros(4, bool),
        "eps_id": np.array(["a"] * 4),
        "t": np.arange(4),
    }
    return SampleBatch({**columns, **changed})


def padded(length):
    return batch(seq_lens=[3, 1]).right_zero_pad(length)


ENDED = grown(2, terminated=True).get_sample_batch()
STEP = {"a": 1}, {"a": 0}, {"a": 1}
TWO = spaces.Discrete(2)


def listed(observations, actions, rewards, **options):
    return SingleAgentEpisode(observations=observations, actions=actions, rewards=rewards, **options)


def remade(**changed):
    return SingleAgentEpisode.from_sample_batch(batch(**changed))


def several(**options):
    return MultiAgentEpisode("e", **options)


def ended():
    return grown_of_several({"a": 0}, (*STEP, True))


def modules():
    return MultiAgentBatch({"p": batch(), "q": batch()}, 4)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: SampleBatch(obs=np.zeros((3, 2)), actions=np.zeros(2)), ValueError, "'obs' and 'actions' have 3 and"),
        (lambda: SampleBatch(obs={"x": np.zeros(3), "y": np.zeros(2)}), ValueError, "'obs/x' and 'obs/y' have 3 and 2"),
        (lambda: SampleBatch(actions={1, 2}), TypeError, "'actions' is a set"),
        (lambda: SampleBatch(actions=None), TypeError, "'actions' is a NoneType"),
        (lambda: SampleBatch(obs=[[1, 2], [3]]), ValueError, "row 1 has shape (1,), row 0 has (2,)"),
        (lambda: SampleBatch(obs=[np.zeros(2), np.zeros(2), np.zeros(3)]), ValueError, "row 2 has shape (3,)"),
        (lambda: SampleBatch({1: np.zeros(2)}), TypeError, "column names are strings"),
        (lambda: batch().__setitem__(1, np.zeros(4)), TypeError, "column names are strings"),
        (lambda: batch().update({2: np.zeros(4)}), TypeError, "column names are strings"),
        (lambda: batch()["values"], KeyError, "no column 'values'; columns are"),
        (lambda: batch(seq_lens=[5, -1]), ValueError, "seq_lens must be one length"),
        (lambda: batch(seq_lens=[1.5, 2.5]), ValueError, "seq_lens must be one length"),
        (lambda: batch(seq_lens=[1, 2]), ValueError, "4 rows, seq_lens sum to 3"),
        (lambda: concat_samples([batch(), {}]), TypeError, "position 1 is a dict"),
        (lambda: concat_samples([padded(4), padded(5)]), ValueError, "max_seq_len is 4 at position 0 and 5"),
        (lambda: concat_samples([padded(4).unpad(), padded(4)]), ValueError, "zero_padded is False at position 0"),
        (lambda: concat_samples([batch(), batch().to_torch()]), TypeError, "is a torch tensor in the batches at [1]"),
        (lambda: concat_samples([batch(), batch(obs=np.zeros((4, 3)))]), ValueError, "'obs' cannot be joined"),
        (lambda: concat_samples([batch(obs={"x": [1] * 4}), batch(obs={"y": [1] * 4})]), ValueError, "'obs' is a dict"),
        (lambda: batch()[[0, 4]], IndexError, "row 4 is outside of 4 rows"),
        (lambda: batch()[np.array([True] * 3)], IndexError, "the mask has 3 entries"),
        (lambda: batch()[3], TypeError, "not by 3"),
        (lambda: batch()[["a", "b"]], TypeError, "rows are picked by"),
        (lambda: batch().timeslices(), ValueError, "exactly one of size and num_slices"),
        (lambda: batch().timeslices(3, 2), ValueError, "exactly one of size and num_slices"),
        (lambda: batch().timeslices(0), ValueError, "size=0"),
        (lambda: padded(2), ValueError, "max_seq_len=2"),
        (lambda: batch().right_zero_pad(4), ValueError, "no column 'seq_lens'"),
        (lambda: batch().get_single_step_input_dict(index=4), IndexError, "row 4 is outside"),
        (lambda: batch().get_single_step_input_dict({"nothing": None}), KeyError, "no column 'nothing'"),
        (lambda: MultiAgentBatch({"p": {}}, 4), TypeError, "module 'p' has a dict"),
        (lambda: MultiAgentBatch({"p": batch()}, -1), ValueError, "env_steps=-1"),
        (lambda: SampleBatch([1, 2]), TypeError, "cannot convert dictionary"),
        (lambda: SampleBatch(actions=[None, 1]), TypeError, "column 'actions', row 0: None does not go"),
        (lambda: SampleBatch(actions=["x", 1]), TypeError, "column 'actions', row 1: 1 does not go"),
        (lambda: SampleBatch(obs=[{"s": [1, 2]}, {"s": [1]}]), ValueError, "the rows of 'obs/s' cannot be stacked"),
        (lambda: batch().timeslices(2.5), ValueError, "size=2.5"),
        (lambda: batch().timeslices(num_slices=0), ValueError, "num_slices=0"),
        (lambda: batch().to_device("nowhere"), RuntimeError, "nowhere"),
        (lambda: MultiAgentBatch({1: batch()}, 4), TypeError, "module 1 has a SampleBatch; each module id, a string"),
        (lambda: remade().cut(1.5), ValueError, "len_lookback_buffer=1.5"),
        (lambda: remade().cut(-1), ValueError, "len_lookback_buffer=-1"),
        (lambda: remade().slice(slice(1, 3), len_lookback_buffer=-2), ValueError, "len_lookback_buffer=-2"),
        (lambda: grown(2, terminated=True).cut(), ValueError, "has no successor"),
        (lambda: SingleAgentEpisode().cut(), ValueError, "no observation"),
        (lambda: grown(5)[::2], ValueError, "step 2"),
        (lambda: grown(5)[5], IndexError, "out of range of an episode of 5 steps"),
        (lambda: grown(5)[-6], IndexError, "out of range of an episode of 5 steps"),
        (lambda: grown(5, terminated=True).concat_episode(grown(5)[3:]), ValueError, "ended at t=5"),
        (lambda: grown(5)[:2].concat_episode(grown(5)[3:]), ValueError, "ends at t=2, the second begins at t=3"),
        (lambda: SingleAgentEpisode().get_data_dict(), ValueError, "add_env_reset first"),
        (lambda: SingleAgentEpisode.from_state({}), KeyError, "no state of an episode"),
        (lambda: SingleAgentEpisode.from_sample_batch(concat_samples([ENDED] * 2)), ValueError, "more than one"),
        (lambda: SingleAgentEpisode.from_sample_batch(SampleBatch()), ValueError, "0 rows is no episode"),
        (lambda: SingleAgentEpisode.from_sample_batch(SampleBatch(obs=[1], actions=[1])), KeyError, "new_obs"),
        (lambda: SingleAgentEpisode().add_env_step(0, 0, 0.0), ValueError, "add_env_reset first"),
        (lambda: given().add_env_reset(0), ValueError, "reset already and is at t=5"),
        (lambda: SingleAgentEpisode(observation_space=spaces.Discrete(2)).add_env_reset(2), ValueError, "does not lie"),
        (lambda: listed([1, 2, 3], [0, 0], [0, 0], len_lookback_buffer=3), ValueError, "allowed are 'auto' and 0 to 2"),
        (lambda: listed([1, 2], [0, 0], [0]), ValueError, "'actions': 2"),
        (lambda: listed([1, 2], [0], []), ValueError, "'rewards': 0"),
        (lambda: listed([1, 2], [0], [0], extra_model_outputs={"v": [1, 2]}), ValueError, "'v': 2"),
        (lambda: SingleAgentEpisode(actions=[0], rewards=[0]), ValueError, "needs observations"),
        (lambda: SingleAgentEpisode(observations=[1], infos=[{}, {}]), ValueError, "there are 2 infos"),
        (lambda: SingleAgentEpisode(observations=np.zeros((0, 2))), ValueError, "0 observations"),
        (lambda: given().get_actions(one_hot_discrete=True), ValueError, "needs the space of the actions"),
        (lambda: given().get_extra_model_outputs("w"), KeyError, "'w'; there are ['v']"),
        (lambda: given(4).set_observations(new_data=[1, 2, 3, 4]), IndexError, "have 4 items for 5 places"),
        (lambda: given().set_actions(new_data=[1], at_indices=[0, 1]), IndexError, "actions have 1 items for 2 places"),
        (lambda: given(4).set_rewards(new_data=1.0, at_indices=4), IndexError, "index 4 of rewards"),
        (lambda: given(4).set_extra_model_outputs(key="w", new_data=[1]), IndexError, "'w'; a new one takes all 4"),
        (lambda: given(4).set_extra_model_outputs(key="z", new_data=1.0, at_indices=0), KeyError, "takes all 4 values"),
        (lambda: in_turns().get_observations(5), IndexError, "index 5 of observations"),
        (lambda: in_turns().get_actions(4), IndexError, "index 4 of actions"),
        (lambda: in_turns().get_actions(env_steps=False, return_list=True), ValueError, "return_list"),
        (lambda: in_turns().cut(-1), ValueError, "len_lookback_buffer=-1"),
        (lambda: MultiAgentEpisode("e").cut(), ValueError, "no observation yet"),
        (lambda: ended().cut(), ValueError, "ended at t=1"),
        (lambda: ended().concat_episode(ended()[1:]), ValueError, "ended at t=1; nothing can follow"),
        (lambda: modules()["r"], KeyError, "no module 'r'; modules are ['p', 'q']"),
        (lambda: modules().timeslices(0), ValueError, "k=0"),
        (lambda: MultiAgentBatch({"p": SampleBatch(a=[1])}, 1).timeslices(2), KeyError, "'p' lacks column 'eps_id'"),
        (lambda: concat_samples_into_ma_batch([modules(), 3]), TypeError, "position 1 is a int"),
        (lambda: convert_ma_batch_to_sample_batch(modules()), ValueError, "modules ['p', 'q']"),
        (lambda: SampleBatch(a=[1]).split_by_episode(), KeyError, "eps_id"),
        (lambda: batch().split_by_episode("run"), KeyError, "run"),
        (lambda: batch().slice(0, 2, 0, 1), ValueError, "no column 'seq_lens'"),
        (lambda: SampleBatch(a=np.zeros((3, 2)), seq_lens=[3, 2, 1], _time_major=True), ValueError, "not 3 sequences"),
        (lambda: batch(seq_lens=[3, 1])[[0, 2]], ValueError, "take_sequences"),
        (lambda: batch(seq_lens=[3, 1]).take_sequences(np.array([3])), IndexError, "row 3 is outside"),
        (lambda: SampleBatch(a=[1])["dones"], KeyError, "no column 'dones'"),
        (lambda: batch().columns(["nothing"]), KeyError, "nothing"),
        (lambda: batch(seq_lens=[2, 2], state_in=np.zeros((3, 8))), ValueError, "'state_in' have 4 and 3 rows"),
        (lambda: batch(seq_lens=[3, 1]).slice(2, 4, 1, 2), ValueError, "sequences 1:2 are rows 3:4, not 2:4"),
        (lambda: batch(seq_lens=[3, 1], eps_id=[0, 0, 1, 1]).split_by_episode(), ValueError, "boundary at row 2"),
        (lambda: batch().split_by_episode()[1], IndexError, "out of range"),
        (lambda: remade(t=np.array([0, 1, 5, 6])), ValueError, "column 't', row 2: 5 does not follow 1"),
        (
            lambda: remade(new_obs=np.array([1.0, 9.0, 3.0, 4.0])),
            ValueError,
            "'new_obs', row 1 is not column 'obs'",
        ),
        (lambda: grown(5)[:2].concat_episode(edited(grown(5)[2:], id_="x")), ValueError, "different ids, 'e' and 'x'"),
        (lambda: grown(5)[:2].concat_episode(edited(grown(6)[3:], t_started=2)), ValueError, "ends with observation"),
        (lambda: listed([0, 1], [5], [np.nan]).validate(), ValueError, "finite"),
        (
            lambda: listed([0, 1], [5], [1.0], action_space=TWO).validate(),
            ValueError,
            "actions[0] =",
        ),
        (
            lambda: listed([0, 7], [1], [1.0], observation_space=TWO).validate(),
            ValueError,
            "observations[1] =",
        ),
        (lambda: edited(given(3), t=7).validate(), ValueError, "t=7 and t_started=0 do not fit 3 stored steps"),
        (lambda: SingleAgentEpisode(terminated=True).validate(), ValueError, "is_reset=False and is_done=True"),
        (lambda: several().add_env_step(*STEP), MultiAgentEnvError, "not been reset"),
        (
            lambda: ended().add_env_step(*STEP),
            MultiAgentEnvError,
            "agent 'a' in env step 1 of episode e: data came",
        ),
        (lambda: ended().add_env_reset({"a": 0}), ValueError, "has been reset already"),
        (lambda: in_turns().add_env_step([1], {}, {}), TypeError, "observations is a list"),
        (lambda: several(observation_space=TWO), TypeError, "observation_space is Discrete(2)"),
        (lambda: several(action_space={"a": TWO}).add_env_reset({"b": 0}), MultiAgentEnvError, "the spaces know ['a']"),
        (
            lambda: several(observation_space={"a": TWO}).add_env_reset({"a": 7}),
            MultiAgentEnvError,
            "agent 'a' in env step 0 of episode e: the observation 7 does not lie in the space Discrete(2)",
        ),
        (lambda: several(agent_to_module_mapping_fn=lambda *_: 3).module_for("a"), TypeError, "'a' was mapped to 3"),
        (
            lambda: in_turns().get_observations(agent_ids=["a", "z"]),
            KeyError,
            "no agent 'z' in episode e; its agents",
        ),
        (lambda: in_turns().get_actions(0, env_steps=False), IndexError, "actions of agent 'c'"),
        (lambda: in_turns().get_extra_model_outputs("w"), KeyError, "agent 'a': no extra model output 'w'"),
        (lambda: in_turns()[4], IndexError, "step 4 is out of range"),
        (lambda: in_turns()[::2], ValueError, "slice step 2"),
        (lambda: several(observations=[{}, {}]), ValueError, "2 observations need 1 actions, but there are 0"),
        (
            lambda: several(observations=[{}], rewards=[{}]),
            ValueError,
            "observations need 0 rewards, but there are 1",
        ),
        (lambda: several(actions=[{"a": 0}]), ValueError, "0 observations need 0 actions, but there are 1"),
        (
            lambda: several(observations=[{}], infos=[{}, {}]),
            ValueError,
            "observations need 1 infos, but there are 2",
        ),
        (lambda: several(observations=[{}], len_lookback_buffer=1), ValueError, "allowed are 'auto' and 0 to 0"),
        (lambda: several(observations={"a": [0, 1]}), TypeError, "observations must be a list with one dict"),
        (lambda: several(observations=[{"a": 0}], terminateds=True), ValueError, "without a step"),
        (lambda: MultiAgentEpisode.from_state({"id_": "e"}), KeyError, "no state of a multi-agent episode; it lacks"),
        (lambda: list(minibatch_indices(4, 0)), ValueError, "minibatch_size=0"),
        (lambda: list(minibatch_indices(4, 2, 0)), ValueError, "num_epochs=0"),
        (lambda: list(minibatch_indices(4, 2, 1, True)), ValueError, "random generator"),
        (lambda: list(minibatch_indices(-1, 2)), ValueError, "cannot be negative"),
        (lambda: MiniBatchIterator(SampleBatch(a=[1]), minibatch_size=0), ValueError, "minibatch_size=0"),
        (lambda: shard_batch(SampleBatch(a=[1]), 0), ValueError, "num_shards=0"),
        (lambda: cut_into_sequences(np.zeros((2, 2), bool), 0), ValueError, "max_seq_len=0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_refused_by_name(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert words in str(raised.value)


def test_a_nan_in_the_observations_follows_itself():
    obs = np.array([0.0, np.nan, 2.0, 3.0])
    made = remade(obs=obs, new_obs=np.array([np.nan, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(made.get_observations(), [0.0, np.nan, 2.0, 3.0, 4.0])


def test_whole_numbers_as_new_rewards_stay_what_rewards_are():
    made = remade()
    made.set_rewards(new_data=[1, 2, 3, 4])
    assert made.get_rewards().dtype == np.float32
    assert made.get_rewards().tolist() == [1, 2, 3, 4]


def test_texts_are_shown_as_texts():
    assert "head=['a', 'a', 'a', ...]" in batch().summary()


def test_an_array_of_objects_is_taken_as_it_is():
    objects = np.array([None, {"a": 1}], dtype=object)
    assert SampleBatch(rewards=[0.0, 1.0], notes=objects)["notes"] is objects
