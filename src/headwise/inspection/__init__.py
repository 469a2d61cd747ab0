"""Looking into trained models: what their heads do with data, and with one input of the user's."""
