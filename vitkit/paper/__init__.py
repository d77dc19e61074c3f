"""The paper's experiments as commands, made of ordinary runs."""
