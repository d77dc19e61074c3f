"""Run folder → report.html, and README.md, the model card."""
