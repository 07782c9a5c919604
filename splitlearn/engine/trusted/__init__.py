"""The trusted party's step loop: its lines to the compute parties, and micro-batches on their way."""

__all__ = ()
