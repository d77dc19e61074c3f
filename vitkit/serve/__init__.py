"""`vitkit serve`: models behind HTTP, and the page in front of them."""
