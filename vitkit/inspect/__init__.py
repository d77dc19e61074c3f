"""The paper's analyses of a trained model (Fig. 7, 10, 11, 14), each a function that returns arrays.

attention · rollout · relevance · distance · embeddings · dense; figures draws the arrays, page writes inspect.html.
"""
