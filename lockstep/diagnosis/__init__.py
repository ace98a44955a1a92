"""What is wrong with a run that does not learn, from its folder: `doctor`."""

from lockstep.diagnosis.findings import Examination, RunFinding, doctor

__all__ = ["Examination", "RunFinding", "doctor"]
