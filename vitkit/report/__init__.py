"""report.html and README.md, the model card, written from a run folder."""
