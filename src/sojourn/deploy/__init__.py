"""The same methods on real machines: a server, workers that hold their data, and a durable broker between them."""
