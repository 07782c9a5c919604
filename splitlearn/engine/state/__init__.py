"""What a party has while it trains: weights by version, optimiser, checkpoints, seeds, device, threads."""

__all__ = ()
