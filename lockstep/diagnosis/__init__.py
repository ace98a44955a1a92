"""Diagnosis of runs that do not learn, from their folders."""

from lockstep.diagnosis.findings import Examination, RunFinding, doctor

__all__ = ["Examination", "RunFinding", "doctor"]
