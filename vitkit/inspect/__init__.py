"""Looking inside a model: the paper's own analyses (Fig. 7, 10, 11, 14), each a function that returns arrays.

attention · rollout · relevance · distance · embeddings · dense; figures draws what they return, page puts it together.
"""
