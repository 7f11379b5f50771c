"""Every synchronising, asynchronous or storing instruction of a kernel, broken one at a time."""
