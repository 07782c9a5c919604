"""The compute party's loop: a trunk that answers, and the hops of a direct chain."""

__all__ = ()
