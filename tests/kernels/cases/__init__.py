"""The kernels against torch's own operators in float32.

Triton's interpreter runs them in a process of its own (test_interpreted.py); on a GPU, test_cuda.py runs them compiled.
"""
