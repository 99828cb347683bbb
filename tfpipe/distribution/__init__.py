"""The devices that train, the part that each host reads for them, and the batch of each replica."""
