"""`gpu-exporter top`: a live view of GPUs in the terminal.

It needs Rich, the extra `top`. The server never imports it.
"""
