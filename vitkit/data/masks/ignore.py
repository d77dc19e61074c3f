"""The number of ignored pixels in a mask, and how many classes fit beside it."""

IGNORE = 255  # a pixel that counts nowhere: not in the loss, not in a score
MAX_CLASSES = 254  # numbers 0 to 253; 254 stays free
