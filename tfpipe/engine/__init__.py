"""The batch of a step, made in one place for every framework. It loads none of them."""
