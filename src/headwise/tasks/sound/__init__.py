"""What speech enhancement is made of: sounds, noise, spectra, scores."""
