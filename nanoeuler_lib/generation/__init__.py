"""A trained model continues a text (`generate`), prices one (`score`) and answers a question (`chat`)."""
