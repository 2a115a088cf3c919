"""What benchmarks and reproductions share: cells to measure, how, where results are kept, and plots."""
