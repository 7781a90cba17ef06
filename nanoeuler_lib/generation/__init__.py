"""Use a trained model: continue a text (`generate`), measure one in bits per byte (`score`), and chat (`chat`)."""
