"""Translation between two owners: the decoder party's loop, the encoder party's, and both in one process."""

__all__ = ()
