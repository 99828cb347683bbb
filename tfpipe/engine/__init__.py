"""The engine, which makes the batch of each step for every framework, and imports none of them."""
