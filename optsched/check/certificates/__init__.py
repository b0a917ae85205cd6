"""What certificates prove: a file for each kind, named as the file of the bound or formulation that states it."""
