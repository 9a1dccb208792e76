"""Numbers that the verdict of the moment (health.py) and the failure modes (which see the past too) share."""

# At this many degrees, or fewer, below the temperature at which it slows down, a GPU is next to doing so.
LOW_MARGIN = 3
# From this utilisation on (percent) a link that saves power when idle is expected at full speed.
BUSY = 50
