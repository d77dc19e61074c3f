"""The look of contact sheets: colours and distances that all of them share."""

GAP, MARGIN, LINE = 6, 16, 18  # pixels
INK, PAPER, FAINT = (24, 28, 36), (252, 252, 250), (120, 126, 136)
EMPTY = (236, 236, 232)  # a tile where no image is
