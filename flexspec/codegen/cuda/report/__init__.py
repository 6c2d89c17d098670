"""What can be proved of the kernels without a GPU: they are compiled for each, and what the compilers made of them is checked."""
