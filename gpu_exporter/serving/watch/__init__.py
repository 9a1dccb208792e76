"""What the live page shows: the current diagnosis of each GPU, its last hour, and the stream of both."""
