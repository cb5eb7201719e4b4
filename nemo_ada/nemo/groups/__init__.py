"""Groups that both asynchronous loops draw one by one: the queue of prompts, a group's rows, and the step of groups."""
