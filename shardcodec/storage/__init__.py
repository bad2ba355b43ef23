"""Where bytes live and who holds them."""
