"""The live page: the current diagnosis of each GPU, its last hour, and the stream of both."""
