"""RecurrentPPO and its policies."""

from lockstep_sb3.ppo_recurrent.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from lockstep_sb3.ppo_recurrent.ppo_recurrent import RecurrentPPO

__all__ = ["CnnLstmPolicy", "MlpLstmPolicy", "MultiInputLstmPolicy", "RecurrentPPO"]
