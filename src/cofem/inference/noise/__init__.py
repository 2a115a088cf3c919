"""Learning the noise level: rules within a fit, and strategies made of them."""
