"""Measuring on the machine at hand: how fast, how near to what the hardware can do, with how much memory."""
