"""Names of the columns that batches, episodes and buffers share."""

from __future__ import annotations

from collections.abc import Collection, Mapping

DEFAULT_MODULE_ID = "default_policy"
"""Module id of the only network of a single-agent policy."""


class Columns:
    """Column names. `SampleBatch` inherits them, so that `SampleBatch.OBS` works as well.

    The strings are stored in data sets, buffers and checkpoints: they must not change.
    """

    __slots__ = ()

    # One transition: obs --actions--> rewards, next_obs.
    OBS = "obs"
    NEXT_OBS = "new_obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DONES = "dones"
    INFOS = "infos"

    # Where a row comes from: its episode, environment, agent and module, and its step `t` in the episode.
    EPS_ID = "eps_id"
    ENV_ID = "env_id"
    AGENT_INDEX = "agent_index"
    AGENT_ID = "agent_id"
    MODULE_ID = "module_id"
    UNROLL_ID = "unroll_id"
    T = "t"

    # Lengths of the sequences that the rows form, one for each sequence.
    SEQ_LENS = "seq_lens"

    # Outputs of the module that acted.
    ACTION_LOGP = "action_logp"
    ACTION_PROB = "action_prob"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTIONS_FOR_ENV = "actions_for_env"
    VF_PREDS = "vf_preds"
    VALUES_BOOTSTRAPPED = "values_bootstrapped"

    # Further inputs of a module.
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = "prev_rewards"
    OBS_EMBEDS = "obs_embeds"
    CRITIC_OBS = "critic_obs"
    RETURNS_TO_GO = "returns_to_go"
    ATTENTION_MASKS = "attention_masks"
    STATE_IN = "state_in"
    STATE_OUT = "state_out"
    EMBEDDINGS = "embeddings"

    # Targets and weights of a loss.
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    INTRINSIC_REWARDS = "intrinsic_rewards"
    LOSS_MASK = "loss_mask"

    # Version of the weights that acted.
    WEIGHTS_SEQ_NO = "weights_seq_no"

    # Columns of replay samples: importance weights, rows of the buffer, and n-step discounts with their lengths.
    WEIGHTS = "weights"
    BATCH_INDEXES = "batch_indexes"
    DISCOUNTS = "discounts"
    NUM_STEPS = "num_steps"


MIRRORED = "mirrored_"
"""Beginning of the names of columns with the mirror images of other columns, such as `"mirrored_obs"`."""


BEGINS = "begins"
"""Column of sequences on a device, bool: whether an episode begins with the row, so that a memory is reset before
it."""


def is_state_column(name: str) -> bool:
    """Return whether `name` is a recurrent state: `state_in`, `state_out`, or one of their numbered parts."""
    # Asked for every column of every batch: one `startswith` rejects nearly all names.
    return name.startswith((Columns.STATE_IN, Columns.STATE_OUT)) and (
        name in (Columns.STATE_IN, Columns.STATE_OUT) or name.startswith(("state_in_", "state_out_"))
    )


_AFTER_LAST = {
    Columns.OBS: Columns.NEXT_OBS,
    Columns.PREV_ACTIONS: Columns.ACTIONS,
    Columns.PREV_REWARDS: Columns.REWARDS,
}
"""For each input column of a module, the column that holds its value for the step after the last row."""


def input_sources(
    present: Collection[str], requirements: Mapping[str, str | None] | None, *, after_last: bool
) -> dict[str, str]:
    """Return, for each input column that a module wants, the column that it is read from.

    Args:
        present: Names of the columns that the batch has.
        requirements: Wanted column -> source column; None as a source means the wanted name itself. Without
            requirements these are the observation, previous action and previous reward, and all state columns.
        after_last: Return the sources of the step after the last row (see
            `SampleBatch.get_single_step_input_dict`).
    """
    if requirements is None:
        states = [name for name in present if name.startswith(Columns.STATE_IN)]
        requirements = dict.fromkeys([*(name for name in _AFTER_LAST if name in present), *states])

    sources = {name: source or name for name, source in requirements.items()}
    if not after_last:
        return sources

    for name, source in sources.items():
        next_source = _AFTER_LAST.get(source, source.replace(Columns.STATE_IN, Columns.STATE_OUT, 1))
        if next_source in present:
            sources[name] = next_source
    return sources
