"""From a job file to a run, and what belongs before and after one: preflight, speeds, canaries, export."""

__all__ = ()
