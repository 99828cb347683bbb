"""The devices that train, the share of the records that each host reads, and the batch of each replica."""
