"""Files and stores: locks, caches, requests, and temporary names."""
