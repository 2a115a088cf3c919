"""Fast transforms of arrays of any library: what the operators in the folder above are made of.

`dispatch` is the only module that operators use. It picks the route:

- ``host_lines``: NumPy arrays, by ducc0 or scipy.fft;
- ``long_lines``: long single lines of NumPy arrays, where folding them is faster than scipy.fft;
- ``array_library``: all other libraries, through the fast Fourier transform that they have.
"""
