"""Where actors run. `topology` decides (data), one file per place brings them up."""
