"""The names of the columns in which all data moves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

DEFAULT_MODULE_ID = "default_policy"
"""Key of the only network where there is one agent."""


class Columns:
    """Names of columns; `SampleBatch` carries them as class attributes too."""

    __slots__ = ()

    OBS = "obs"
    NEXT_OBS = "new_obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DONES = "dones"
    INFOS = "infos"
    EPS_ID = "eps_id"
    ENV_ID = "env_id"
    AGENT_INDEX = "agent_index"
    AGENT_ID = "agent_id"
    MODULE_ID = "module_id"
    UNROLL_ID = "unroll_id"
    T = "t"
    SEQ_LENS = "seq_lens"
    ACTION_LOGP = "action_logp"
    ACTION_PROB = "action_prob"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTIONS_FOR_ENV = "actions_for_env"
    VF_PREDS = "vf_preds"
    VALUES_BOOTSTRAPPED = "values_bootstrapped"
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = "prev_rewards"
    OBS_EMBEDS = "obs_embeds"
    CRITIC_OBS = "critic_obs"
    RETURNS_TO_GO = "returns_to_go"
    ATTENTION_MASKS = "attention_masks"
    STATE_IN = "state_in"
    STATE_OUT = "state_out"
    EMBEDDINGS = "embeddings"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    INTRINSIC_REWARDS = "intrinsic_rewards"
    LOSS_MASK = "loss_mask"
    WEIGHTS_SEQ_NO = "weights_seq_no"
    WEIGHTS = "weights"
    BATCH_INDEXES = "batch_indexes"
    DISCOUNTS = "discounts"
    NUM_STEPS = "num_steps"


def is_state_column(name: str) -> bool:
    """Return whether `name` is a recurrent state: `state_in`, `state_out`, or one of their numbered parts."""
    return name.startswith((Columns.STATE_IN, Columns.STATE_OUT)) and (
        name in (Columns.STATE_IN, Columns.STATE_OUT) or name.startswith(("state_in_", "state_out_"))
    )


_AFTER_LAST = {
    Columns.OBS: Columns.NEXT_OBS,
    Columns.PREV_ACTIONS: Columns.ACTIONS,
    Columns.PREV_REWARDS: Columns.REWARDS,
}
"""column of a model's input -> the column that holds it after the last row"""


def input_sources(
    present: Collection[str], requirements: Mapping[str, str | None] | None, *, after_last: bool
) -> dict[str, str]:
    """Return the wanted columns of a model's input, each with the column that it is read from.

    See `SampleBatch.get_single_step_input_dict`; `after_last` asks for the input of the step after the last row.
    """
    if requirements is None:
        states = [name for name in present if name.startswith(Columns.STATE_IN)]
        requirements = dict.fromkeys([*(name for name in _AFTER_LAST if name in present), *states])
    wanted = {name: source or name for name, source in requirements.items()}
    if after_last:
        for name, source in wanted.items():
            after = _AFTER_LAST.get(source, source.replace(Columns.STATE_IN, Columns.STATE_OUT, 1))
            wanted[name] = after if after in present else source
    return wanted
