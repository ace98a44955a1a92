"""Policies of `RecurrentPPO`."""

from lockstep_sb3.common.recurrent.policies import CnnLstmPolicy as CnnLstmPolicy
from lockstep_sb3.common.recurrent.policies import MlpLstmPolicy as MlpLstmPolicy
from lockstep_sb3.common.recurrent.policies import MultiInputLstmPolicy as MultiInputLstmPolicy
