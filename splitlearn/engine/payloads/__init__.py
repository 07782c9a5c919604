"""What crosses a cut, at either end: rows through codecs, what is kept of them, bases, noise, weights."""

__all__ = ()
