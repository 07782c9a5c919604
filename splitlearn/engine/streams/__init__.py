"""A round of pre-training: generators' streams, and the discriminator that trains on them."""

__all__ = ()
