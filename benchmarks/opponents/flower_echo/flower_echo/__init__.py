"""A Flower app whose clients answer what they were sent."""
