"""One peer in one pair of hands: what is said to it and heard from it, by whichever thread."""

__all__ = ()
