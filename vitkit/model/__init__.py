"""The paper's models in plain PyTorch: batch → patches → tokens → encoder → head. Start at vit.py."""
