"""batch → patches → tokens → encoder → head. Start at vit.py; sizes are in variants.py alone."""
