"""Tests of files behind URLs, against a local S3 server."""
