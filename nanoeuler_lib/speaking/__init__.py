"""What a trained model says: a text goes on (`generate`), a question is answered (`chat`)."""
