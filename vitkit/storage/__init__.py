"""Files behind URLs, s3://, gs://, hf://, https:// and whatever else fsspec opens: requests, repeats, messages."""
