"""`OfflineTrainer`: the order of events, what is counted, what is refused, exact resume."""

import numpy as np
import pytest
from algorithm_cases import FROM_RETURNS, OFFLINE, class_of
from gymnasium import spaces
from parts import one_in
from trainer_tools import by_hand, config_for, learned, random_transitions

from lockstep import BCConfig, DQNConfig, OfflineTrainer, Policy, SampleBatch, get_config
from lockstep.data import OfflineDataset, write_rows
from lockstep.replay import PrioritizedReplayBuffer, ReplayBuffer
from lockstep.rollout import MalformedBufferError
from lockstep.state.checkpoint import newest_checkpoint, read_checkpoint
from lockstep.trainer import Callback, CheckpointCallback, restore_trainer, save_trainer

ROWS = 100
OF_64_ROWS = "b45a2651366621f0e83a7417cad9d890269f05a14966eeb969baafe7b7baf21f"
"""what version 0.2 noted of `batch_of()`"""


def batch_of(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    done = np.arange(rows) % 10 == 9
    return SampleBatch(
        obs=rng.normal(size=(rows, 4)).astype(np.float32),
        new_obs=rng.normal(size=(rows, 4)).astype(np.float32),
        actions=rng.integers(0, 2, rows),
        rewards=np.arange(rows, dtype=np.float32),
        terminateds=done,
        truncateds=np.zeros(rows, bool),
    )


@pytest.fixture(scope="module")
def data():
    return ReplayBuffer.from_batch(batch_of())


WEIGHED = class_of(FROM_RETURNS)


def config_of(kind=WEIGHED, **sections):
    sections.setdefault("training", {}).setdefault("train_batch_size", 16)
    config = kind().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    config.reporting(total_steps=140, steps_per_epoch=70)
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config


def trainer_of(buffer, kind=WEIGHED, learner=None, **options):
    training = {} if learner is None else {"learner_class": learner}
    return by_hand(config_of(kind, training=training), evaluate=False, buffer=buffer, **options)


def test_step_per_epoch_counts_gradient_steps_and_env_step_stays_0(data):
    trainer = trainer_of(data)
    epochs = list(trainer)
    assert [stats.training_stat.gradient_steps for stats in epochs] == [70, 70]
    assert [stats.training_stat.metrics["policy_loss"].count for stats in epochs] == [70, 70]
    assert [stats.train_collect_stat for stats in epochs] == [None, None]
    info = trainer.info()
    assert (info.train_step, info.train_episode, info.gradient_step) == (0, 0, 140)
    assert (info.samples_seen, info.dataset_passes) == (140 * 16, 140 * 16 / ROWS)
    assert trainer.info().timing.update_speed > 0
    assert trainer.policy.timesteps == {"num_env_steps_sampled_lifetime": 134}  # schedules go by gradient steps


def test_batch_size_none_takes_the_whole_buffer_once_without_replacement(data):
    trainer = trainer_of(data, batch_size=None, step_per_epoch=3, max_epoch=1)
    info = trainer.run()
    assert (info.gradient_step, info.samples_seen, info.dataset_passes) == (3, 3 * ROWS, 3.0)
    assert sorted(trainer.policy.last_batch["batch_indexes"]) == list(range(ROWS))


def test_the_buffer_goes_through_process_buffer_once(data):
    calls = []

    class Counting(BCConfig):
        def process_buffer(self, buffer):
            calls.append(buffer)
            return buffer

    trainer = trainer_of(data, Counting, step_per_epoch=3)
    trainer.run()
    trainer.run()
    assert calls == [data]


def test_rows_on_disk_are_passed_over_repeatedly_without_replacement(data, tmp_path):
    seen = []

    class Watching(BCConfig.learner_class):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            seen.extend(batch["number"].tolist())
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    rows = SampleBatch(**{name: batch_of()[name] for name in ("obs", "actions")}, number=np.arange(ROWS))
    for source in (rows, OfflineDataset(write_rows(tmp_path / "rows", rows), max_memory_bytes=0)):
        trainer_of(source, BCConfig, Watching, max_epoch=1, batch_size=30, step_per_epoch=10).run()
        passes = np.reshape(seen, (3, ROWS))
        assert (np.sort(passes, axis=1) == np.arange(ROWS)).all()
        assert not (passes[0] == passes[1]).all()
        seen.clear()


@pytest.mark.parametrize("column, value", [("rewards", np.inf), ("obs", -np.inf), ("new_obs", np.inf), ("obs", np.nan)])
def test_infinity_in_offline_data_is_refused_by_column_and_row(column, value, tmp_path):
    bad = batch_of()
    bad[column][7] = value
    message = rf"have {value} in column '{column}' \(row 7 of 100 looked at\); only finite numbers"
    only = SampleBatch({name: bad[name] for name in ("obs", "actions", "rewards", "new_obs")})  # no whole transitions
    for given in (bad, only):
        with pytest.raises(MalformedBufferError, match=message):
            trainer_of(given, BCConfig)
    if np.isinf(value):
        with pytest.raises(MalformedBufferError, match=message):
            trainer_of(ReplayBuffer.from_batch(bad), BCConfig)
    rows = OfflineDataset(write_rows(tmp_path / "rows", only))
    with pytest.raises(MalformedBufferError, match=f"have {value} in column '{column}'"):
        trainer_of(rows, BCConfig, max_epoch=1).run()


@pytest.mark.parametrize("algorithm", OFFLINE)
def test_a_buffer_with_another_discount_is_refused_by_what_bootstraps(algorithm):
    config = config_for(algorithm, "Pendulum-v1").training(gamma=0.9)
    policy = config.build_policy()
    translated = random_transitions("Pendulum-v1", 50)
    translated["actions"] = policy.from_env(translated["actions"])

    def trainer(**given):
        buffer = ReplayBuffer.from_batch(translated, **given)
        buffer.action_form = policy.action_form
        return by_hand(config, policy=policy, buffer=buffer, evaluate=False)

    for fitting in ({"n_step": 3, "gamma": 0.9}, {"gamma": 0.8}):  # the second sums nothing
        assert trainer(**fitting)
    if not class_of(algorithm).can_prioritize:
        assert trainer(n_step=3, gamma=0.8)
        return
    with pytest.raises(ValueError, match=r"sums n_step=3 rewards with gamma=0.8, the policy learns with gamma=0.9"):
        trainer(n_step=3, gamma=0.8)


def test_an_empty_or_malformed_buffer_raises_malformed_buffer_error(data, tmp_path):
    bad = batch_of()
    bad["rewards"][3] = np.nan
    wide = batch_of()
    wide["obs"] = wide["new_obs"] = np.zeros((ROWS, 7), np.float32)
    many = batch_of()
    many["actions"] = many["actions"] + 1
    cases = {
        "are empty": ReplayBuffer(10),
        "are a list": [1],
        "are a dict": {},
        r"have nan in column 'rewards' \(row 3 of 100": bad,
        "transitions with NaN; call dropnull": ReplayBuffer.from_batch(bad),
        r"rows of .*7.*observations are Box\(": wide,
        "from 1 to 2, the policy's are whole numbers from 0 to 1": many,
        "needs the column 'rewards'; the offline data have": SampleBatch(obs=bad["obs"], actions=bad["actions"]),
    }
    for message, buffer in cases.items():
        with pytest.raises(MalformedBufferError, match=message):
            trainer_of(buffer)
    rows = OfflineDataset(write_rows(tmp_path / "rows", batch_of()))
    with pytest.raises(MalformedBufferError, match=f"{FROM_RETURNS} needs the returns of whole episodes"):
        trainer_of(rows)
    with pytest.raises(FileNotFoundError, match="no Minari dataset 'nobody/nothing-v0'"):
        trainer_of("nobody/nothing-v0")
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz"):
        trainer_of("nothing.npz")


def test_beta_follows_gradient_steps_offline_and_added_rows_afterwards():
    buffer = PrioritizedReplayBuffer(ROWS, beta=[[0, 0.0], [100, 1.0]])
    buffer.extend(batch_of())
    trainer = OfflineTrainer(
        config_of(DQNConfig).build_policy(), buffer=buffer, max_epoch=3, batch_size=8, step_per_epoch=50
    )
    stood = []
    for _ in trainer:
        priorities = buffer.priorities
        stood.append((priorities.beta.timestep, priorities.beta.value))
    assert stood == [(0, 0.0), (50, 0.5), (100, 1.0)]
    buffer.sample(8)
    assert buffer.priorities.beta.timestep == ROWS


def test_build_trainer_makes_an_offline_trainer_without_an_environment(data):
    space = spaces.Box(-9.0, 9.0, (4,)), spaces.Discrete(2)
    config = config_of(BCConfig, offline_data={"input_": data}, reporting={"total_steps": 20, "steps_per_epoch": 2})
    config.environment(None, observation_space=space[0], action_space=space[1])
    config.sections["environment"].env = None
    trainer = config.build_trainer()
    assert isinstance(trainer, OfflineTrainer)
    assert (trainer.batch_size, trainer.step_per_epoch, trainer.test_collector) == (16, 2, None)
    assert trainer.run().gradient_step == 20
    with pytest.raises(ValueError, match=r"offline_data\.input_ is not set"):
        config_of(BCConfig).build_trainer()


def test_a_checkpoint_holds_no_data_and_is_refused_with_other_data(folder):
    trainer = trainer_of(batch_of(), max_epoch=1)
    trainer.run()
    path = save_trainer(trainer, folder / "checkpoint")
    assert set(read_checkpoint(path)["offline"]["state"]) == {"data", "drawing"}
    same = trainer_of(batch_of(), max_epoch=1)
    restore_trainer(same, path)
    assert np.array_equal(same.buffer.sample_indices(20), trainer.buffer.sample_indices(20))
    for other in (batch_of(seed=1), batch_of(90)):
        with pytest.raises(ValueError, match="the run was made with other data"):
            restore_trainer(trainer_of(other, max_epoch=1), path)
    with pytest.raises(ValueError, match="not of an offline run"):
        same.set_own_folders({"trainer": {}})


def changed_data(kind, folder, row=None):
    """Data of 100 rows, of which one is another: in memory with and without all columns, or in a file."""
    batch = batch_of()
    if row is not None:
        batch["obs"][row, 2] += 1.0
    if kind == "transitions":
        return batch
    rows = SampleBatch({name: batch[name] for name in ("obs", "actions")})
    return rows if kind == "columns" else OfflineDataset(write_rows(folder / "rows.npy", rows))


@pytest.mark.parametrize("kind", ["transitions", "columns", "file"])
def test_one_other_row_among_all_is_other_data(kind, folder):
    trainer = trainer_of(changed_data(kind, folder), BCConfig, max_epoch=1, step_per_epoch=2)
    trainer.run()
    path = save_trainer(trainer, folder / "checkpoint")
    restore_trainer(trainer_of(changed_data(kind, folder), BCConfig), path)
    for row in (2, 50, 99):  # 2 is none of the 64 rows that version 0.2 looked at
        with pytest.raises(ValueError, match="the run was made with other data"):
            restore_trainer(trainer_of(changed_data(kind, folder, row), BCConfig), path)


def test_a_run_of_version_0_2_resumes_and_gets_the_digest_of_its_data():
    old_note = {"num_rows": ROWS, "sha256": OF_64_ROWS}
    trainer = trainer_of(batch_of(), max_epoch=1)
    trainer.run()
    folders = trainer.own_folders()
    digest = folders["offline"]["state"]["data"]["digest"]
    folders["offline"]["state"]["data"] = old_note
    again = trainer_of(batch_of(), max_epoch=1)
    again.set_own_folders(folders)
    assert again.own_folders()["offline"]["state"]["data"] == {"num_rows": ROWS, "digest": digest}
    with pytest.raises(ValueError, match="the run was made with other data"):
        trainer_of(batch_of(seed=1), max_epoch=1).set_own_folders(folders)


@pytest.mark.parametrize("columns", [None, ("obs", "actions")])
def test_the_seed_is_that_of_what_is_drawn(columns):
    def drawn(seed):
        rows = batch_of() if columns is None else SampleBatch({name: batch_of()[name] for name in columns})
        trainer = trainer_of(rows, BCConfig, max_epoch=1, step_per_epoch=1, seed=seed)
        trainer.run()
        return trainer.policy.last_batch["obs"]

    assert np.array_equal(drawn(4), drawn(4))
    assert not np.array_equal(drawn(4), drawn(5))


def test_checkpoint_callback_counts_gradient_steps_and_saves_interrupts(folder):
    def interrupt(event):
        if event.gradient_step == 134:
            raise KeyboardInterrupt

    watcher = Callback()
    watcher.on_update_end = interrupt
    trainer = trainer_of(batch_of(), callbacks=[watcher, CheckpointCallback(folder / "kept")])
    assert trainer.run().stop_reason == "interrupted"
    assert sorted(path.name for path in (folder / "kept").iterdir()) == ["step_000000000070", "step_000000000134"]
    again, straight = trainer_of(batch_of()), trainer_of(batch_of())
    restore_trainer(again, newest_checkpoint(folder / "kept"))
    again.run()
    straight.run()
    assert learned(again) == learned(straight)


@pytest.mark.parametrize("algorithm", [name for name in OFFLINE if not class_of(name).can_prioritize])
def test_a_prioritized_buffer_is_refused_without_errors_for_priorities(algorithm):
    batch = random_transitions("CartPole-v1")
    config = get_config(algorithm).environment("CartPole-v1").reporting(total_steps=2)
    config.offline_data(input_=ReplayBuffer.from_batch(batch, priorities={"alpha": 0.6, "beta": 0.4}))
    with pytest.raises(ValueError, match=f"buffer draws by priority, and {algorithm} has no errors"):
        config.build_trainer()


# -- networks with memory ---

LSTM = {"recurrent": "lstm", "recurrent_size": 4, "max_seq_len": 6}
ATTENTION = {"attention": {"size": 4, "num_heads": 2, "memory": 5, "hidden_size": 4}, "max_seq_len": 6}


@pytest.mark.parametrize("memory", [LSTM, ATTENTION], ids=["lstm", "attention"])
@pytest.mark.parametrize("algorithm", one_in(2, OFFLINE))
def test_half_a_run_resumed_equals_a_whole_one_with_memory(algorithm, memory, folder):
    def made(epochs):
        config = config_for(algorithm, rl_module={"model_config": {"hiddens": (4,), **memory}})
        return by_hand(config, evaluate=False, buffer=config.offline_data.input_, max_epoch=epochs, step_per_epoch=3)

    whole, half = made(2), made(1)
    whole.run()
    half.run()
    resumed = made(2)
    restore_trainer(resumed, save_trainer(half, folder / "checkpoint"))
    resumed.run()
    assert learned(resumed) == learned(whole)
    assert resumed.samples_seen == whole.samples_seen > 0
    loaded = Policy.from_checkpoint(whole.policy.save_to_path(folder / "policy"))
    seen = np.random.default_rng(0).normal(size=(5, 2, *whole.policy.observation_space.shape)).astype(np.float32)
    states = {whole.policy: None, loaded: None}
    for obs in seen:
        actions = []
        for policy, state in states.items():
            action, states[policy] = policy.compute_actions(obs, state, explore=False)
            actions.append(action)
        assert np.array_equal(*actions)
    assert all(np.abs(leaf).sum() > 0 for leaf in states[loaded].values())


def test_sequences_have_max_seq_len_or_the_length_of_the_buffer():
    policy = config_of(rl_module={"model_config": {"hiddens": (4,), **LSTM}}).build_policy()
    for options, longest in (({}, 4 + 3), ({"sequence_length": 2, "burn_in": 1}, 2 + 1)):
        buffer = ReplayBuffer.from_batch(batch_of(), **options)
        trainer = OfflineTrainer(policy, buffer=buffer, max_epoch=1, batch_size=64, step_per_epoch=1)
        before = trainer.samples_seen
        trainer.run()
        batch = policy.last_batch
        assert (len(batch["seq_lens"]), batch["seq_lens"].max()) == (64, longest)
        assert trainer.samples_seen - before == batch["loss_mask"].sum() < len(batch)
    assert buffer.options.sequence_length == 2
