"""A model goes through the encoders tensor by tensor: where it comes from, what is done, what became of it."""
