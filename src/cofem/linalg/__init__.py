"""Matrix-free linear algebra: batched conjugate gradients, the posterior's systems, diagonal estimators."""
