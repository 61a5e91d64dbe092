"""A chat of your own: signed JSON in, signed JSON out."""
